"""Look into a forward pass: compare every intermediate value of a token with what it was when computed otherwise.

Comparing logits alone can miss that two ways of computing differ. A difference in the last bit of one product is
often rounded away before the logits, for nine tokens in ten or for ninety-nine in a hundred, and shows up in the
next conversation. The value itself differs nearly always. So llama.cpp is asked (`cb_eval`) for the result of each
operation; one run's results are learnt, token by token, and other runs' are looked up among them.

Which row of a tensor belongs to which token need not be known: each token's share of a result has to be among those
that were learnt for the same operation.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from verifiable.errors import EngineError
from verifiable.llama import library

LAYOUT: Final = frozenset((b"NONE", b"VIEW", b"RESHAPE", b"PERMUTE", b"TRANSPOSE", b"CPY", b"CONT", b"SET_ROWS"))
"""Operations that only move values."""
FUSED: Final = frozenset((b"RMS_NORM", b"NORM"))
"""Operations that ggml-cpu computes together with the next one; asking for their results would keep it from that."""
_SELECTION: Final = b"GET_ROWS"
_EMBEDDING: Final = b"embd"
"""The first result of each graph (`llm_graph_context::build_inp_embd`), one row for each token in it."""

_OFF, _LEARN, _CHECK, _NOTE = range(4)
_Key = tuple[bytes, int]


class Trace:
    """An observer for one `Context`. It does nothing until told to learn or to check, batch by batch.

    Attributes:
        compared: results looked up so far, one for each operation and token.
        difference: name of the first operation with a result that was not learnt, or None.
        noted: name and SHA-256 of the whole result of each operation since `note`, in the order of computation.
    """

    def __init__(self) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        functions = (
            ("ggml_nbytes", size, [pointer]),
            ("ggml_is_contiguous", ctypes.c_bool, [pointer]),
            ("ggml_get_name", ctypes.c_char_p, [pointer]),
            ("ggml_op_desc", ctypes.c_char_p, [pointer]),
            ("ggml_backend_tensor_get", None, [pointer, pointer, size, size]),
        )
        self._ggml = library.shared_library("ggml-base", "base", functions)
        self._mode = _OFF
        self._rows = self._first = self._outputs = self._width = 0
        self._seen: dict[bytes, int] = {}
        self._learnt: dict[_Key, tuple[int, set[int]]] = {}
        self._failure: Exception | None = None
        self.compared = 0
        self.difference: str | None = None
        self.noted: list[tuple[str, bytes]] = []
        self.callback = library.library().llama_cpp.ggml_backend_sched_eval_callback(self._called)

    def learn(self, rows: int, first: int, outputs: int) -> None:
        """Learn the results of the next decode for its *first* rows: a batch of *rows* rows of one sequence, that
        llama.cpp computes at once, with *outputs* rows of logits, those first ones among them."""
        self._first, self._outputs = first, outputs
        self._begin(_LEARN, rows)

    def check(self, rows: int) -> None:
        """Look up the results of the next decode, whose tokens have all been learnt and all have logits."""
        self._begin(_CHECK, rows)

    def note(self) -> None:
        """Note the results of the next decode, for comparison with another machine's."""
        self.noted = []
        self._begin(_NOTE, 0)

    def stop(self) -> None:
        """End what `learn`, `check` or `note` began. Raises EngineError where the results could not be read."""
        self._mode = _OFF
        failure, self._failure = self._failure, None
        if failure is not None:
            raise EngineError("cannot read llama.cpp's intermediate results", found=failure) from failure

    def reset(self) -> None:
        """Forget what was compared, but not what was learnt."""
        self.compared, self.difference = 0, None

    def _begin(self, mode: int, rows: int) -> None:
        self._mode, self._rows = mode, rows
        self._seen.clear()

    def _called(self, tensor: int, asks: bool, _data: object) -> bool:
        # Runs inside the computation: nothing may be raised through it.
        if self._mode == _OFF:
            return False
        try:
            operation = self._ggml.ggml_op_desc(tensor)
            if asks:
                return operation not in LAYOUT and operation not in FUSED
            self._take(tensor, operation)
        except Exception as error:
            self._failure = self._failure or error
            self._mode = _OFF
        return True

    def _take(self, tensor: int, operation: bytes) -> None:
        name = self._ggml.ggml_get_name(tensor)
        size = self._ggml.ggml_nbytes(tensor)
        if name == _EMBEDDING:
            self._seen.clear()  # a large batch is computed as several graphs
        if not name or name.startswith((b"node_", b" ", b"cache_")):
            name = operation  # numbers of unnamed nodes depend on the graph; their order does not
        number = self._seen.get(name, 0)
        self._seen[name] = number + 1
        key = (name, number)
        if not size or not self._ggml.ggml_is_contiguous(tensor):
            return
        if self._mode == _NOTE:
            label = _label(name, operation) + (f" #{number}" if number else "")
            self.noted.append((label, hashlib.sha256(self._read(tensor, size).data).digest()))
            return
        if self._mode == _LEARN:
            if name == _EMBEDDING:
                self._width = size // self._rows
            elif operation == _SELECTION and size == self._outputs * self._width:
                self._rows = self._outputs  # the last layer goes on with the rows that have logits
            if size % self._rows:
                return  # not one share for each token
            share, known = self._learnt.setdefault(key, (size // self._rows, set()))
            if share == size // self._rows:
                known.update(self._shares(tensor, share * self._first, share))
            return
        share, known = self._learnt.get(key, (0, set()))
        if not share:
            return
        if name == _EMBEDDING and not size % share:
            self._rows = size // share
        if size != share * self._rows:
            return
        seen = self._shares(tensor, size, share)
        self.compared += len(seen)
        if self.difference is None and not known.issuperset(seen):
            self.difference = _label(name, operation)

    def _shares(self, tensor: int, size: int, share: int) -> list[int]:
        # A checksum will do: nobody chooses these values, and the probe's result is for the one who runs it.
        data = self._read(tensor, size).data
        return [crc32(data[at : at + share]) for at in range(0, size, share)]

    def _read(self, tensor: int, size: int) -> NDArray[np.uint8]:
        """The first `size` bytes of a result."""
        buffer = np.empty(size, np.uint8)
        self._ggml.ggml_backend_tensor_get(tensor, buffer.ctypes.data, 0, size)
        return buffer


def _label(name: bytes, operation: bytes) -> str:
    return (name if name == operation else name + b", " + operation).decode("utf-8", "replace")
