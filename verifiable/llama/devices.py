"""Devices that llama.cpp can compute on, by the names that it gives them."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from verifiable.errors import EngineError, PolicyError
from verifiable.llama import library
from verifiable.llama.settings import NO_DEVICE

_PROCESSOR: Final = frozenset({"CPU"})
"""The backend that computes on the processor, in files that llama.cpp's build makes."""
_CPU: Final = 0  # GGML_BACKEND_DEVICE_TYPE_CPU in ggml-backend.h


def names() -> list[str]:
    """The devices of this machine other than the processor itself, such as "CUDA0"."""
    ggml = _ggml()
    pointers = [ggml.ggml_backend_dev_get(at) for at in range(ggml.ggml_backend_dev_count())]
    return [
        ggml.ggml_backend_dev_name(device).decode("utf-8", "replace")
        for device in pointers
        if ggml.ggml_backend_dev_type(device) != _CPU
    ]


def device_list(wanted: str) -> Any:
    """What `llama_model_params.devices` wants for `RuntimeSettings.device`: a C array that ends in NULL, or None for
    all devices. It must be referenced as long as the model is being loaded. Raises EngineError where this machine has
    no device of that name.
    """
    if not wanted:
        return None
    ggml, pointers = _ggml(), []
    for name in [] if wanted == NO_DEVICE else wanted.split(","):
        device = ggml.ggml_backend_dev_by_name(name.encode())
        if not device or ggml.ggml_backend_dev_type(device) == _CPU:
            raise EngineError(
                f"this machine has no device {name}",
                expected=", ".join([NO_DEVICE, *names()]),
                found=wanted,
                hint="Devices have the names that this build of llama.cpp gives them.",
            )
        pointers.append(device)
    return (ctypes.c_void_p * (len(pointers) + 1))(*pointers, None)


def processor_only() -> bool:
    """Whether this build of llama.cpp computes on the processor, and by its own files, whatever the machine has."""
    ggml = _ggml()
    registries = (ggml.ggml_backend_reg_get(at) for at in range(ggml.ggml_backend_reg_count()))
    return {ggml.ggml_backend_reg_name(each).decode("utf-8", "replace") for each in registries} == _PROCESSOR


def check_kind(wanted: str) -> None:
    """Raise PolicyError where a device is wanted that no machine has for this build of llama.cpp."""
    if wanted not in ("", NO_DEVICE) and processor_only():
        raise PolicyError("this build of llama.cpp has no such device", expected=NO_DEVICE, found=wanted)


def _ggml() -> Any:
    """The library with ggml's registry of devices."""
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    functions: list[tuple[str, Any, list[Any]]] = [
        ("ggml_backend_dev_count", ctypes.c_size_t, []),
        ("ggml_backend_dev_get", pointer, [ctypes.c_size_t]),
        ("ggml_backend_dev_by_name", pointer, [text]),
        ("ggml_backend_dev_name", text, [pointer]),
        ("ggml_backend_dev_type", ctypes.c_int, [pointer]),
        ("ggml_backend_reg_count", ctypes.c_size_t, []),
        ("ggml_backend_reg_get", pointer, [ctypes.c_size_t]),
        ("ggml_backend_reg_name", text, [pointer]),
    ]
    return library.shared_library("ggml", "device", functions)
