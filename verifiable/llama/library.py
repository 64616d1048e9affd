"""Loading llama.cpp into the process: once, with the environment that the settings ask for, and quietly.

Two switches that change arithmetic are read from the environment by the library itself, once per process. So they
are set here before the first import and nowhere else, and whatever the surroundings had set is overruled: what the
manifest says about a run must be what happened.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from verifiable.errors import EngineError
from verifiable.llama import machine_code
from verifiable.manifest.libraries import Library

TILED: Final = "GGML_CPU_TILED_MM"
"""Read once, at the first matrix product, by ggml-cpu/tiled/tiled.cpp."""

OVERRULED: Final = ("GGML_CPU_TILED_MM_FORCE", "GGML_CPU_DISABLE_FUSION", "LLAMA_ATTN_ROT_DISABLE")
"""Other variables by which llama.cpp changes its arithmetic, and which no setting of ours stands for."""

_FILE_NAMES: Final = ("lib{}.so", "lib{}.dylib", "{}.dll")
_KEPT_LINES: Final = 8
_WARN, _ERROR, _CONTINUED = 3, 4, 5  # enum ggml_log_level in ggml.h

_lock = threading.Lock()
_module: ModuleType | None = None
_tiled = False
_imported = False  # by `bindings`, which computes nothing
_log: deque[str] = deque(maxlen=_KEPT_LINES)
_callback: Any = None  # the C side keeps only the address: it must stay referenced for the life of the process


class BuildInfo(NamedTuple):
    """What code computes: versions of llama.cpp and of its bindings, the instruction sets it was built for, the files
    of machine code and their compiler (empty where they do not say).
    """

    build: str
    bindings: str
    system: str
    libraries: tuple[Library, ...] = ()
    compiler: str = ""

    @property
    def stated(self) -> tuple[str, str, str]:
        """What llama.cpp and its bindings say of themselves."""
        return self.build, self.bindings, self.system


def load_library(tiled: bool, *, passive: bool = False) -> ModuleType:
    """Import llama_cpp with its environment set, or return it when it is loaded already.

    Args:
        tiled: whether the tiled K-quant product may be used (`RuntimeSettings.tiled`).
        passive: let idle OpenMP threads sleep rather than spin, unless the caller's environment says otherwise.
            On a busy machine two spinning threads can be forty times slower than one; on an idle one sleeping
            costs half the speed of two threads. No effect on one thread, nor once an OpenMP library is loaded.

    Raises:
        EngineError: the process has the other value of *tiled* already, or the library cannot be loaded.
        ModuleNotFoundError: llama-cpp-python is not installed (the extra `llama`).
    """
    global _module, _tiled, _callback
    with _lock:
        if _module is not None:
            if tiled != _tiled:
                raise EngineError(
                    "llama.cpp is already loaded with another setting of the tiled product",
                    expected=f"tiled={_tiled}",
                    found=f"tiled={tiled}",
                    hint="It is read once per process: use a process of its own for each setting",
                )
            return _module
        value = "1" if tiled else "0"
        if "llama_cpp" in sys.modules and not _imported and os.environ.get(TILED) != value:
            raise EngineError(
                "llama_cpp was imported before its environment could be set",
                expected=f"{TILED}={value}",
                found=os.environ.get(TILED, "not set"),
                hint="Import verifiable.llama first, or set the variable yourself",
            )
        os.environ[TILED] = value
        for name in OVERRULED:
            os.environ.pop(name, None)
        # On abort() ggml would start a debugger to print a backtrace: slow, and no use to anyone here.
        os.environ["GGML_NO_BACKTRACE"] = "1"
        if passive:
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            module = importlib.import_module("llama_cpp")
        except ModuleNotFoundError:
            raise
        except (OSError, RuntimeError, ImportError, AttributeError) as error:
            raise EngineError(
                "llama.cpp's library cannot be loaded",
                found=error,
                hint="Install llama-cpp-python again on this machine",
            ) from error
        _callback = module.llama_log_callback(_keep)
        module.llama_log_set(_callback, ctypes.c_void_p(0))
        module.llama_backend_init()
        _module, _tiled = module, tiled
        return module


def bindings(name: str) -> ModuleType:
    """A module of the bindings that computes nothing with a model, such as "llama_grammar", for use before or without
    `load_library`. Raises ModuleNotFoundError where llama-cpp-python is not installed.
    """
    global _imported
    with _lock:
        # llama.cpp reads its switches at its first product, so they can still be set after this.
        _imported = _imported or "llama_cpp" not in sys.modules
        return importlib.import_module(f"llama_cpp.{name}")


def library() -> ModuleType:
    """The loaded llama_cpp; loads it with the invariant setting, and patient threads, when nobody has asked before.

    Whoever wants several threads on an idle machine calls `load_library` first."""
    return _module if _module is not None else load_library(tiled=False, passive=True)


def is_tiled() -> bool | None:
    """The process's setting of the tiled product; None while the library is not loaded."""
    return _tiled if _module is not None else None


def build_info() -> BuildInfo:
    """Of the loaded library. What it states is equal for many builds that compute otherwise; the files are not."""
    module = library()
    parts = [module.llama_version().decode("utf-8", "replace")]
    for symbol in ("ggml_version", "ggml_commit"):
        try:
            function = getattr(module.llama_cpp._lib, symbol)
        except AttributeError:  # not every release exports them
            continue
        function.restype = ctypes.c_char_p
        function.argtypes = []
        parts.append(f"{symbol.replace('_', ' ')} {function().decode('utf-8', 'replace')}")
    system = module.llama_print_system_info().decode("utf-8", "replace")
    folder = Path(str(module.llama_cpp._base_path))
    return BuildInfo(
        ", ".join(parts),
        f"llama-cpp-python {module.__version__}",
        system.strip(" |"),
        machine_code.in_use(folder),
        machine_code.compiler(folder),
    )


def shared_library(name: str, what: str, functions: Sequence[tuple[str, Any, list[Any]]] = ()) -> Any:
    """One of the files that llama.cpp is made of, such as "ggml-base"; *functions* are the (name, result, arguments) of
    those that are called. Raises EngineError where it is missing.
    """
    folder = library().llama_cpp._base_path
    path = next((path for form in _FILE_NAMES if (path := folder / form.format(name)).exists()), None)
    if path is None:
        raise EngineError(f"llama.cpp's {what} library is missing", expected=f"lib{name}", found=folder)
    loaded = ctypes.CDLL(str(path))
    for function, result, arguments in functions:
        call = getattr(loaded, function)
        call.restype, call.argtypes = result, arguments
    return loaded


def forget_log() -> None:
    """Drop the kept lines, so that `last_log` after a failed call speaks of that call."""
    _log.clear()


def last_log() -> str | None:
    """llama.cpp's last warnings and errors as one line, for the hint of an error; None when there were none."""
    lines = [line.strip() for line in list(_log) if line.strip()]
    return "llama.cpp said: " + " / ".join(lines) if lines else None


_keeping = False


def _keep(level: int, text: bytes | None, _data: object) -> None:
    # Called from C, at times from llama.cpp's own threads. An exception here would be printed and lost.
    global _keeping
    if level != _CONTINUED:
        _keeping = level in (_WARN, _ERROR)
    if _keeping and text:
        _log.append(text.decode("utf-8", "replace"))
