"""Running a model: decode batches of rows, and keep, copy and cut back the memory of several sequences.

llama.cpp answers a bad call by ending the process, or by quietly computing something else. So every precondition of
a call is checked here first, and nothing that could be quiet passes: what `decode` returns was computed from exactly
the tokens that the rows say.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verifiable.errors import EngineError, PolicyError
from verifiable.llama import library
from verifiable.llama.batch import Batch
from verifiable.llama.model import Model
from verifiable.llama.pairs import Filler, Pairs, same_again
from verifiable.llama.settings import KV_TYPES, RuntimeSettings
from verifiable.llama.trace import Trace
from verifiable.manifest.rope import MODELS_OWN, SCALINGS

__all__ = ["AbortedError", "Batch", "Context", "LogitRows", "NoRoomError", "RollbackError"]

_DECODE_NO_ROOM, _DECODE_ABORTED = 1, 2  # llama_decode in llama.h


class NoRoomError(EngineError):
    """The memory has no room for the rows of a batch. Nothing was changed."""


class AbortedError(EngineError):
    """A decode was stopped from outside. The sequences of its batch are where they were before."""


class RollbackError(EngineError):
    """The memory cannot be cut back to that position exactly. Nothing was changed; start the sequence anew."""


class LogitRows:
    """The logits of one decode, by row index of its batch. Valid until the context's next decode, then refused."""

    __slots__ = ("_context", "_generation", "_index", "_logits")

    def __init__(self, context: Context, generation: int, logits: NDArray[np.float32], index: dict[int, int]) -> None:
        self._context = context
        self._generation = generation
        self._logits = logits
        self._index = index

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        """float32 logits after the token of *row*, shape (n_vocab,), read-only, a view into llama.cpp's memory.

        Raises EngineError where the row was not flagged, or another decode has overwritten it.
        """
        if self._generation != self._context.generation:
            raise EngineError("these logits are gone: the context was used again", hint="Copy what is to be kept")
        output = self._index.get(row)
        if output is None:
            raise EngineError(f"row {row} was added without logits", expected=f"one of {sorted(self._index)}")
        view: NDArray[np.float32] = self._logits[output]
        return view

    def __len__(self) -> int:
        return len(self._index)


class Context:
    """Memory and compute buffers for up to `settings.n_seq_max` sequences of `settings.n_ctx` tokens each.

    Belongs to one thread at a time. Close it, or use it in a `with` statement; closing its model closes it too.

    The model must be open, and loaded with the same `repack`, `n_gpu_layers` and `device` as *settings* say. *trace*
    observes the computation, for the numerics probe.

    Raises:
        PolicyError: model, process and settings do not belong together.
        EngineError: the model cannot generate text, or llama.cpp refuses the settings (usually: not enough memory).
    """

    def __init__(self, model: Model, settings: RuntimeSettings, *, trace: Trace | None = None) -> None:
        self._pointer = 0
        self._trace = trace  # its callback must live as long as the context
        self.model = model
        self.settings = settings
        self.generation = 0
        _check_fit(model, settings)
        self._lib: Any = library.library()
        self._pairs = Pairs(settings.n_batch + settings.n_seq_max) if settings.pairs else None
        params = _params(self._lib, settings)
        if trace is not None:
            params.cb_eval = trace.callback
        self._pointer = model.new_context(params)
        self._memory = self._lib.llama_get_memory(self._pointer)
        if not self._memory or not self._lib.llama_get_causal_attn(self._pointer):
            self.close()
            raise EngineError("the model does not generate text", expected="causal attention", found=model.description)
        spare = settings.n_seq_max if settings.pairs else 0
        self.n_batch: int = min(settings.n_batch, self._lib.llama_n_batch(self._pointer) - spare)
        self.filler: Filler = same_again
        self._next = [0] * settings.n_seq_max
        self._n_vocab = model.n_vocab
        self._address = 0
        self._view: NDArray[np.float32] = np.empty((0, model.n_vocab), np.float32)

    def decode(self, batch: Batch) -> LogitRows:
        """Compute the rows of *batch* and append their tokens to their sequences.

        Raises:
            NoRoomError: no room in the memory; nothing changed.
            AbortedError: stopped from outside; sequences are as before.
            EngineError: a row does not continue its sequence, or llama.cpp failed; sequences are as before, except
                that a recurrent one that cannot be cut back is empty (see `length`).
        """
        self._check_open()
        self._check_rows(batch)
        self.generation += 1
        library.forget_log()
        rows, index = (batch, batch._index) if self._pairs is None else self._pairs.of(batch, self.filler)
        code = self._lib.llama_decode(self._pointer, rows.struct(self._lib.llama_batch))
        if code:
            self._fail(code, batch)
        ends = self._next
        for seq, end in batch._next.items():
            ends[seq] = end
            if rows._next[seq] != end and not self._lib.llama_memory_seq_rm(self._memory, seq, end, -1):
                raise EngineError(f"the throw-away row of sequence {seq} cannot be removed", hint=library.last_log())
        return LogitRows(self, self.generation, self._rows(len(rows._index)), index)

    def outputs(self, batch: Batch) -> int:
        """How many rows of logits llama.cpp computes for *batch*."""
        return len(batch._index) if self._pairs is None else len(self._pairs.of(batch, self.filler)[0]._index)

    def _check_rows(self, batch: Batch) -> None:
        rows = batch._rows
        if not 1 <= rows <= self.n_batch:
            raise EngineError("batch size is out of range", expected=f"1 to {self.n_batch} rows", found=rows)
        if batch._top >= self._n_vocab:
            raise EngineError("no such token", expected=f"0 to {self._n_vocab - 1}", found=batch._top)
        ends = self._next
        room = self.settings.n_ctx
        for seq, first in batch._first.items():
            if seq >= len(ends):
                raise EngineError("no such sequence", expected=f"0 to {len(ends) - 1}", found=seq)
            if first != ends[seq]:
                raise EngineError(
                    f"rows do not continue sequence {seq}", expected=f"position {ends[seq]}", found=f"position {first}"
                )
            if batch._next[seq] > room:
                raise NoRoomError(
                    f"sequence {seq} is full", expected=f"at most {room} tokens", found=f"{batch._next[seq]} tokens"
                )

    def _rows(self, count: int) -> NDArray[np.float32]:
        if count == 0:
            return self._view[:0]
        # llama_get_logits waits for the computation and puts outputs into the order of the rows.
        pointer = self._lib.llama_get_logits(self._pointer)
        if not pointer:
            raise EngineError("llama.cpp has no logits for this model", found=self.model.description)
        address = ctypes.addressof(pointer.contents)
        if address != self._address or count > len(self._view):
            memory = (ctypes.c_float * (count * self._n_vocab)).from_address(address)
            view = np.frombuffer(memoryview(memory).cast("B"), np.float32).reshape(count, self._n_vocab)
            view.flags.writeable = False
            self._address, self._view = address, view
        return self._view

    def _fail(self, code: int, batch: Batch) -> None:
        hint = library.last_log()
        if code != _DECODE_NO_ROOM:
            # Part of the work may be done. Go back to where each sequence was; a state that cannot go back is dropped.
            for seq, first in batch._first.items():
                if self._window_lost(seq, first) or not self._lib.llama_memory_seq_rm(self._memory, seq, first, -1):
                    self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
                self._sync(seq)
        if code == _DECODE_NO_ROOM:
            raise NoRoomError("llama.cpp found no room for the batch", found=f"{len(batch)} rows", hint=hint)
        if code == _DECODE_ABORTED:
            raise AbortedError("the decode was aborted", hint=hint)
        raise EngineError("llama.cpp failed to decode the batch", found=f"code {code}", hint=hint)

    def length(self, seq: int) -> int:
        """Tokens held for a sequence: the position that its next row must have."""
        self._check_sequence(seq)
        return self._next[seq]

    def remove(self, seq: int, p0: int, p1: int = -1) -> None:
        """Forget the positions from *p0* on. The sequence goes on at *p0* exactly as if they had never been.

        Position 0 empties the sequence, and always succeeds. *p1* is -1, or not before the sequence's end: a hole would
        leave later positions computed from tokens that are no longer there.

        Raises:
            RollbackError: the memory cannot do it exactly (recurrent state, or a window already dropped).
            EngineError: the range is not a tail of the sequence.
        """
        self._check_open()
        self._check_sequence(seq)
        end = self._next[seq]
        if p0 < 0 or (p1 != -1 and p1 < end):
            raise EngineError(
                "only the tail of a sequence can be removed", expected=f"p0 from 0, p1 -1 or {end}", found=f"{p0}, {p1}"
            )
        if p0 >= end:
            return
        self.generation += 1
        if p0 > 0:
            lost = self._window_lost(seq, p0)
            if lost or not self._lib.llama_memory_seq_rm(self._memory, seq, p0, -1):
                raise RollbackError(
                    f"sequence {seq} cannot be cut back to position {p0}",
                    found=lost or f"a state that only exists for its end, position {end}",
                    hint="Empty it and compute it again",
                )
        elif not self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1):
            raise EngineError(f"llama.cpp cannot empty sequence {seq}", hint=library.last_log())
        self._sync(seq)

    def _window_lost(self, seq: int, p0: int) -> str | None:
        # Without swa_full only a window of each sequence is kept for sliding-window layers. Cutting back further
        # reports success and computes on with what is missing.
        if self.model.n_swa <= 0 or self.settings.swa_full or p0 == 0:
            return None
        needed = max(0, p0 - self.model.n_swa)
        oldest = self._lib.llama_memory_seq_pos_min(self._memory, seq)
        return f"a sliding window that starts at {oldest}, not {needed}" if oldest > needed else None

    def copy(self, src: int, dst: int) -> None:
        """Make sequence *dst* hold what *src* holds; what it held before is forgotten."""
        self._check_open()
        self._check_sequence(src)
        self._check_sequence(dst)
        if src == dst:
            return
        self.generation += 1
        self._lib.llama_memory_seq_rm(self._memory, dst, -1, -1)
        if self._next[src]:
            # Whole sequences only: llama.cpp asserts that between separate streams.
            self._lib.llama_memory_seq_cp(self._memory, src, dst, -1, -1)
        self._sync(dst)
        if self._next[dst] != self._next[src]:
            raise EngineError(
                f"llama.cpp cannot copy sequence {src} to {dst}", expected=self._next[src], found=self._next[dst]
            )

    def clear(self) -> None:
        """Empty every sequence."""
        self._check_open()
        self.generation += 1
        self._lib.llama_memory_clear(self._memory, True)
        self._next = [0] * self.settings.n_seq_max

    def set_threads(self, n_threads: int) -> None:
        """Use another number of threads from now on, without losing what is held."""
        self._check_open()
        if not 1 <= n_threads <= 512:
            raise EngineError("number of threads is out of range", expected="1 to 512", found=n_threads)
        self._lib.llama_set_n_threads(self._pointer, n_threads, n_threads)

    def close(self) -> None:
        """Free the memory; logits handed out before must not be touched after this."""
        self.generation += 1
        pointer, self._pointer = self._pointer, 0
        if pointer:
            self.model.free_context(pointer)

    def _check_open(self) -> None:
        if not self.model.owns(self._pointer):
            raise EngineError("the context is closed")

    def _check_sequence(self, seq: int) -> None:
        if not 0 <= seq < len(self._next):
            raise EngineError("no such sequence", expected=f"0 to {len(self._next) - 1}", found=seq)

    def _sync(self, seq: int) -> None:
        self._next[seq] = self._lib.llama_memory_seq_pos_max(self._memory, seq) + 1

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", 0):
            self.close()


def _check_fit(model: Model, settings: RuntimeSettings) -> None:
    if (model.repack, model.n_gpu_layers, model.device) != (settings.repack, settings.n_gpu_layers, settings.device):
        raise PolicyError(
            "the model was loaded with other settings",
            expected=f"repack={settings.repack}, n_gpu_layers={settings.n_gpu_layers}, device={settings.device!r}",
            found=f"repack={model.repack}, n_gpu_layers={model.n_gpu_layers}, device={model.device!r}",
        )
    if library.is_tiled() != settings.tiled:
        raise PolicyError(
            "the process was started with another setting of the tiled product",
            expected=f"tiled={settings.tiled}",
            found=f"tiled={library.is_tiled()}",
            hint="Call load_library(tiled) first; the setting cannot change within a process",
        )
    if model.has_encoder or not model.has_decoder or model.is_diffusion:
        raise EngineError(
            "the model does not generate text token by token", expected="a decoder", found=model.description
        )
    check_possible(model, settings)


def check_possible(model: Model, settings: RuntimeSettings) -> None:
    """Raise PolicyError where no build and no machine can run the model under these settings."""
    if not model.has_rope and settings.rope != MODELS_OWN:
        raise PolicyError("the model has no RoPE to be set", expected="no RoPE setting", found=settings.rope)
    if settings.pairs and (model.is_recurrent or model.is_hybrid):
        raise PolicyError("rows in pairs need memory that can be cut back", found=model.description)
    if not model.has_rope and not model.is_recurrent and settings.n_ctx > model.n_ctx_train > 0:
        # Positions are rows of a table; reading past its end ends the process.
        raise PolicyError(
            "n_ctx is longer than the model's table of positions", expected=model.n_ctx_train, found=settings.n_ctx
        )


def _params(lib: Any, settings: RuntimeSettings) -> Any:
    params = lib.llama_context_default_params()
    spare = 1 if settings.pairs else 0  # for each sequence's throw-away row
    params.n_ctx = (settings.n_ctx + spare) * settings.n_seq_max  # llama.cpp divides it among the sequences
    params.n_seq_max = settings.n_seq_max
    params.n_batch = settings.n_batch + spare * settings.n_seq_max
    params.n_ubatch = settings.n_ubatch + spare * settings.n_seq_max
    params.n_threads = params.n_threads_batch = settings.n_threads
    params.type_k = KV_TYPES[settings.type_k]
    params.type_v = KV_TYPES[settings.type_v]
    # Never "auto": what was decided has to be known, and said in the manifest.
    fused = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if settings.flash_attn else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.flash_attn_type = fused
    params.kv_unified = settings.kv_unified
    params.swa_full = settings.swa_full
    rope = settings.rope
    if rope.scaling:
        params.rope_scaling_type = SCALINGS.index(rope.scaling)
    params.rope_freq_base, params.rope_freq_scale = rope.freq_base, rope.freq_scale
    params.yarn_ext_factor, params.yarn_attn_factor = rope.yarn_ext_factor, rope.yarn_attn_factor
    params.yarn_beta_fast, params.yarn_beta_slow = rope.yarn_beta_fast, rope.yarn_beta_slow
    params.yarn_orig_ctx = rope.yarn_orig_ctx
    params.offload_kqv = settings.n_gpu_layers != 0
    params.no_perf = True
    return params
