"""A GGUF model in memory: its vocabulary, its tokenizer and what its memory can do.

Loading validates the file first (`verifiable.llama.gguf`), because llama.cpp ends the process on some malformed ones.
A model only answers questions once it is loaded, so several threads may ask it; closing it is for one alone.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fsencode, fspath
from types import MappingProxyType, ModuleType
from typing import Any, Final

from verifiable.errors import EngineError, PolicyError
from verifiable.llama import library
from verifiable.llama.devices import device_list
from verifiable.llama.gguf.lora import Adapter, inspect_adapters
from verifiable.llama.gguf.parts import inspect_parts

Progress = Callable[[int, int], None]
"""Called with what is done and the total, in the same unit, both counting up."""

_LOAD_STEPS: Final = 1000
_MAX_TEXT: Final = 64 * 1024 * 1024
"""Longest text to tokenise, in bytes. The tokenizer's memory grows with a multiple of it."""

_ATTR_UNKNOWN, _ATTR_CONTROL, _ATTR_USER_DEFINED = 1 << 0, 1 << 3, 1 << 4  # enum llama_token_attr in llama.h
_VOCAB_NONE: Final = 0  # LLAMA_VOCAB_TYPE_NONE: tokenising with it aborts
_ROPE_NONE: Final = -1  # LLAMA_ROPE_TYPE_NONE: positions are learned, biases, or not used


class Model:
    """A loaded model. Make one with `Model.load`; close it, or use it in a `with` statement.

    Attributes:
        n_vocab: size of the vocabulary; token ids are 0 to n_vocab - 1.
        n_ctx_train: context length in training, tokens.
        n_layer: number of layers.
        n_swa: width of the sliding attention window, tokens; 0 when all layers see everything.
        is_recurrent, is_hybrid: the memory is (partly) a state that cannot be cut back to an earlier position.
        has_encoder: an encoder-decoder model.
        description: llama.cpp's short description, such as "llama 135M Q4_1".
        eog: ids that end a generation.
        suppressed: ids that the model's own list bars from every answer, ascending.
        bos: id of the beginning-of-sequence token, or None.
        adds_bos: whether the tokenizer is meant to put `bos` first.
        chat_template: the Jinja source that the file carries, or None.
        control_tokens: text -> id of every token that must never come out of a person's text: those with the
            attribute control or unknown, and all of `eog`.
        control_attributes: the same tokens, id -> `enum llama_token_attr` bits.
        whole_words: text -> id of user-defined tokens, which the tokenizer reads as a whole in any text.
        adapters: the LoRA adapters that every context of this model has.
        vocabulary_only: loaded without its weights: it can speak of tokens and templates, and compute nothing.
    """

    def __init__(self, pointer: int, module: ModuleType, repack: bool, n_gpu_layers: int, device: str) -> None:
        self._lib: Any = module
        self._pointer: int | None = pointer
        self._contexts: set[int] = set()
        self.adapters: tuple[Adapter, ...] = ()
        self._loras: list[Any] = []  # pointers; freed with the model
        self._pieces: dict[int, bytes] = {}
        self.repack = repack
        self.n_gpu_layers = n_gpu_layers
        self.device = device
        self.vocabulary_only = False
        lib = self._lib
        self._vocab: int = lib.llama_model_get_vocab(pointer)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(pointer)
        self.n_layer: int = lib.llama_model_n_layer(pointer)
        self.n_swa: int = lib.llama_model_n_swa(pointer)
        self.is_recurrent: bool = lib.llama_model_is_recurrent(pointer)
        self.is_hybrid: bool = lib.llama_model_is_hybrid(pointer)
        self.has_encoder: bool = lib.llama_model_has_encoder(pointer)
        self.has_decoder: bool = lib.llama_model_has_decoder(pointer)
        self.is_diffusion: bool = lib.llama_model_is_diffusion(pointer)
        self.has_rope: bool = lib.llama_model_rope_type(pointer) != _ROPE_NONE
        self.description: str = self._description()
        self.chat_template: str | None = _text(lib.llama_model_chat_template(pointer, None))
        bos, eos = lib.llama_vocab_bos(self._vocab), lib.llama_vocab_eos(self._vocab)
        self.bos: int | None = bos if 0 <= bos < self.n_vocab else None
        self.eos: int | None = eos if 0 <= eos < self.n_vocab else None
        self.adds_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        self._adds_eos: bool = lib.llama_vocab_get_add_eos(self._vocab)
        self._can_tokenize = self.n_vocab > 0 and lib.llama_vocab_type(self._vocab) != _VOCAB_NONE
        control: dict[str, int] = {}
        attributes: dict[int, int] = {}
        words: dict[str, int] = {}
        eog: set[int] = set()
        for token in range(self.n_vocab if self._can_tokenize else 0):
            bits = lib.llama_vocab_get_attr(self._vocab, token)
            ends = lib.llama_vocab_is_eog(self._vocab, token)
            if ends:
                eog.add(token)
            if ends or bits & (_ATTR_CONTROL | _ATTR_UNKNOWN):
                attributes[token] = bits
                control.setdefault(self._token_text(token), token)
            elif bits & _ATTR_USER_DEFINED:
                words.setdefault(self._token_text(token), token)
        control.pop("", None)
        words.pop("", None)
        self.eog: frozenset[int] = frozenset(eog)
        count = ctypes.c_int32()
        barred = lib.llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(count))
        self.suppressed: tuple[int, ...] = tuple(sorted({barred[at] for at in range(count.value)}))
        self.control_tokens: Mapping[str, int] = MappingProxyType(control)
        self.control_attributes: Mapping[int, int] = MappingProxyType(attributes)
        self.whole_words: Mapping[str, int] = MappingProxyType(words)
        self._barred = frozenset(attributes)

    def _token_text(self, token: int) -> str:
        return _text(self._lib.llama_vocab_get_text(self._vocab, token)) or ""

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        repack: bool = False,
        n_gpu_layers: int = 0,
        progress: Progress | None = None,
        adapters: Sequence[Adapter] = (),
        device: str = "",
    ) -> Model:
        """Validate and load a GGUF file (the first of its parts when it is split).

        *repack*, *n_gpu_layers* and *device* are as in `RuntimeSettings`; *progress* is called with (done, 1000) while
        weights are read; every context of the model has the *adapters*.

        Raises:
            MalformedError: the file is not a well-formed GGUF model, or an adapter is not one for it.
            EngineError: it cannot be read, llama.cpp refuses it, or there is no such device.
            PolicyError: the adapters can't be used together.
        """
        inspect_adapters(adapters, [part for _, part in inspect_parts(path)])
        module = library.library()
        lib: Any = module
        params = lib.llama_model_default_params()
        params.use_extra_bufts = repack
        params.n_gpu_layers = n_gpu_layers
        chosen = device_list(device)  # referenced until the call below has returned
        if chosen is not None:
            params.devices = ctypes.cast(chosen, ctypes.c_void_p)

        def report(share: float, _data: object) -> bool:
            if progress is not None:
                # A caller's exception cannot cross C; the bar is not worth the model.
                with contextlib.suppress(Exception):
                    progress(round(share * _LOAD_STEPS), _LOAD_STEPS)
            return True

        callback = lib.llama_progress_callback(report)  # referenced until the call below has returned
        params.progress_callback = callback
        library.forget_log()
        pointer = lib.llama_model_load_from_file(fsencode(path), params)
        if not pointer:
            raise EngineError(f"llama.cpp refuses the model {fspath(path)}", hint=library.last_log())
        model = cls(pointer, module, repack, n_gpu_layers, device)
        try:
            for adapter in adapters:
                model._add(adapter)
        except BaseException:
            model.close()
            raise
        return model

    @classmethod
    def load_vocabulary(cls, path: str | PathLike[str]) -> Model:
        """Validate a GGUF file and load its vocabulary and chat template, not its weights: quick and small.

        Its attributes about layers are 0. Raises as `load`.
        """
        metadata = inspect_parts(path)[0][1].metadata
        module = library.library()
        lib: Any = module
        params = lib.llama_model_default_params()
        params.vocab_only = True
        params.n_gpu_layers = 0
        library.forget_log()
        pointer = lib.llama_model_load_from_file(fsencode(path), params)
        if not pointer:
            raise EngineError(f"llama.cpp refuses the model {fspath(path)}", hint=library.last_log())
        model = cls(pointer, module, False, 0, "")
        model.vocabulary_only = True
        trained = metadata.get(f"{metadata['general.architecture']}.context_length")
        model.n_ctx_train = trained if isinstance(trained, int) else 0
        return model

    def _add(self, adapter: Adapter) -> None:
        """Load an adapter. llama.cpp sizes a context by what is loaded, so none may have been made yet."""
        library.forget_log()
        pointer = self._lib.llama_adapter_lora_init(self.pointer, fsencode(adapter.path))
        if not pointer:
            raise EngineError(f"llama.cpp refuses the adapter {adapter.path}", hint=library.last_log())
        self._loras.append(pointer)
        self.adapters = (*self.adapters, adapter)

    @property
    def pointer(self) -> int:
        """Address of the `llama_model`, for `Context` alone."""
        if self._pointer is None:
            raise EngineError("the model is closed")
        return self._pointer

    @property
    def vocab(self) -> int:
        """Address of the `llama_vocab`, for `Grammar` alone."""
        if self._pointer is None:
            raise EngineError("the model is closed")
        return self._vocab

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of *text*, as `llama_tokenize` gives them, but never a control token out of plain text.

        Without *parse_special* llama.cpp does not look for control tokens, yet some vocabularies (of the kind
        "llama") can put one together from its letters. Such a text is cut within those letters and tokenised in
        pieces.

        Args:
            text: any Unicode text without lone surrogates.
            add_special: add the tokens that the model wants at the ends (usually `bos`).
            parse_special: read control tokens written out in the text as those tokens. Never for foreign text.

        Raises:
            PolicyError: the text is too long or not valid Unicode, or is a control token however it is cut.
            EngineError: the model has no tokenizer, or lacks a token that it is meant to add.
        """
        self._check_tokenizer()
        if add_special and ((self.adds_bos and self.bos is None) or (self._adds_eos and self.eos is None)):
            # llama_vocab::impl::tokenize asserts this, and an assertion there ends the process.
            raise EngineError("the model's vocabulary lacks the token that it is meant to add to every text")
        ids = self._tokenize(text, add_special, parse_special)
        if parse_special:
            return ids
        added = self._tokenize("", True, False) if add_special else []
        if sum(token in self._barred for token in ids) == sum(token in self._barred for token in added):
            return ids
        # What is added goes before the text, except that an end token goes after it.
        tail = [token for token in added[-1:] if self._adds_eos and token == self.eos]
        return added[: len(added) - len(tail)] + self._cut(text) + tail

    def _cut(self, text: str) -> list[int]:
        ids = self._tokenize(text, False, False)
        bad = next((token for token in ids if token in self._barred), None)
        if bad is None:
            return ids
        written = self._token_text(bad)
        at = text.find(written)
        middle = at + 1 if at >= 0 and len(written) > 1 else len(text) // 2
        if len(text) < 2:
            raise PolicyError("the text is a control token of the model", found=text)
        return self._cut(text[:middle]) + self._cut(text[middle:])

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PolicyError("the text is not valid Unicode", found=error.reason) from error
        if len(data) > _MAX_TEXT:
            raise PolicyError("the text is too long", expected=f"at most {_MAX_TEXT} bytes", found=len(data))
        size = len(data) + 2
        for _ in range(2):
            ids = (ctypes.c_int32 * size)()
            count = self._lib.llama_tokenize(self._vocab, data, len(data), ids, size, add_special, parse_special)
            if count >= 0:
                return ids[:count]
            size = -count
            if size > 2**31 - 1:
                break
        raise EngineError("llama.cpp cannot tokenise the text", found=f"{len(data)} bytes", hint=library.last_log())

    def piece(self, token: int) -> bytes:
        """The bytes that *token* stands for in a text: b"" for control tokens, maybe part of a character.

        Raises:
            PolicyError: there is no such token (asking llama.cpp for one would end the process).
        """
        piece = self._pieces.get(token)
        if piece is None:
            if type(token) is not int or not 0 <= token < self.n_vocab:
                raise PolicyError("no such token", expected=f"0 to {self.n_vocab - 1}", found=token)
            piece = b"" if token in self.control_attributes else self._read_piece(token)
            self._pieces[token] = piece
        return piece

    def _read_piece(self, token: int) -> bytes:
        self._check_tokenizer()
        # A buffer of its own for each call: other threads may be asking, and the result is kept.
        size = 256
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            count: int = self._lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count
        raise EngineError(f"llama.cpp cannot spell token {token}", hint=library.last_log())

    def _check_tokenizer(self) -> None:
        if self._pointer is None:
            raise EngineError("the model is closed")
        if not self._can_tokenize:
            raise EngineError("the model has no tokenizer", expected="a vocabulary", found=self.description)

    def _description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self._pointer, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Free the model, and first every context made from it: llama.cpp crashes on the other order."""
        if self._pointer is None:
            return
        for context in list(self._contexts):
            self.free_context(context)
        pointer, self._pointer = self._pointer, None
        self._lib.llama_model_free(pointer)

    def new_context(self, params: Any) -> int:
        """A `llama_context` with *params* and all adapters, for `Context` alone. The model owns it, so that the order
        of freeing is right even where Python collects both at once, in any order."""
        if self.vocabulary_only:
            raise EngineError("the model was loaded without its weights", expected="Model.load")
        library.forget_log()
        pointer: int | None = self._lib.llama_init_from_model(self.pointer, params)
        if not pointer:
            raise EngineError("llama.cpp cannot make a context with these settings", hint=library.last_log())
        self._contexts.add(pointer)
        if self.adapters:
            count = len(self.adapters)
            scales = (ctypes.c_float * count)(*[adapter.scale for adapter in self.adapters])
            loras = (self._lib.llama_adapter_lora_p_ctypes * count)(*self._loras)
            self._lib.llama_set_adapters_lora(pointer, loras, count, scales)
        return pointer

    def free_context(self, context: int) -> None:
        """Free one context of this model; nothing happens when that was done before."""
        if context in self._contexts:
            self._contexts.remove(context)
            self._lib.llama_free(context)

    def owns(self, context: int) -> bool:
        """Whether that context is still alive."""
        return context in self._contexts

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
