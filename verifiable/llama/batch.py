"""The rows of one decode step, in the memory layout that `llama_decode` reads, checked as they are added.

Nothing here is allocated per step: arrays live as long as the batch, and adding a row writes four numbers.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from verifiable.errors import EngineError
from verifiable.llama.settings import MAX_SEQUENCES

_INT32_MAX: Final = 2**31 - 1


class Batch:
    """Rows (sequence, position, token) for one `Context.decode`.

    The rows of one sequence must follow each other in position without a gap; rows of different sequences may be
    mixed. A batch can be cleared and used again for ever, by one thread at a time.

    `capacity` is the most rows it can hold; `Context.decode` takes at most its settings' n_batch.
    """

    def __init__(self, capacity: int) -> None:
        if type(capacity) is not int or not 1 <= capacity <= _INT32_MAX:
            raise EngineError("batch capacity is out of range", expected=f"1 to {_INT32_MAX}", found=capacity)
        self.capacity: Final = capacity
        self._token = (ctypes.c_int32 * capacity)()
        self._position = (ctypes.c_int32 * capacity)()
        self._seq = (ctypes.c_int32 * capacity)()
        self._logits = (ctypes.c_int8 * capacity)()
        self._n_seq = (ctypes.c_int32 * capacity)()
        self._seq_pointers = (ctypes.POINTER(ctypes.c_int32) * capacity)()
        pointer_type = ctypes.POINTER(ctypes.c_int32)
        start = ctypes.addressof(self._seq)
        for row in range(capacity):
            self._n_seq[row] = 1  # 0 would end the process
            self._seq_pointers[row] = ctypes.cast(start + row * ctypes.sizeof(ctypes.c_int32), pointer_type)
        self._struct: Any = None
        self._rows = 0
        self._top = -1
        self._first: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._index: dict[int, int] = {}

    def add(self, seq: int, pos: int, token: int, logits: bool) -> int:
        """Append a row and return its index.

        The row before in the same sequence must be at `pos` - 1. With `logits` those after this token are wanted.

        Raises:
            EngineError: the batch is full, a number is out of range, or the position does not follow.
        """
        row = self._rows
        if row >= self.capacity:
            raise EngineError("the batch is full", expected=f"at most {self.capacity} rows")
        try:
            if not (0 <= seq < MAX_SEQUENCES and 0 <= pos < _INT32_MAX and 0 <= token <= _INT32_MAX):
                raise EngineError("batch row is out of range", found=f"sequence {seq}, position {pos}, token {token}")
            if self._next.get(seq, pos) != pos:
                raise EngineError(
                    f"batch rows of sequence {seq} do not follow each other",
                    expected=f"position {self._next[seq]}",
                    found=f"position {pos}",
                )
            self._token[row] = token
            self._position[row] = pos
            self._seq[row] = seq
        except TypeError as error:
            raise EngineError("batch row is not made of integers", found=error) from error
        if seq not in self._next:
            self._first[seq] = pos
        self._next[seq] = pos + 1
        if token > self._top:
            self._top = token
        if logits:
            self._logits[row] = 1
            self._index[row] = len(self._index)
        else:
            self._logits[row] = 0
        self._rows = row + 1
        return row

    def clear(self) -> None:
        """Forget all rows."""
        self._rows = 0
        self._top = -1
        self._first = {}
        self._next = {}
        self._index = {}  # a new one each time: the logits of the last decode still refer to the old

    def __len__(self) -> int:
        return self._rows

    def output(self, row: int) -> int:
        """Which of the outputs a row with logits has, in order."""
        return self._index[row]

    def row(self, row: int) -> tuple[int, int, int, bool]:
        """Sequence, position and token of a row, and whether it has logits."""
        return self._seq[row], self._position[row], self._token[row], bool(self._logits[row])

    @property
    def spans(self) -> dict[int, tuple[int, int]]:
        """Sequence -> (first position, position after the last) of its rows."""
        return {seq: (first, self._next[seq]) for seq, first in self._first.items()}

    def struct(self, llama_batch: Any) -> Any:
        """The `llama_batch` over these rows, for `Context` alone; *llama_batch* is the bindings' structure."""
        struct = self._struct
        if struct is None:
            struct = self._struct = llama_batch()
            struct.embd = None
            for name, array in (
                ("token", self._token),
                ("pos", self._position),
                ("n_seq_id", self._n_seq),
                ("seq_id", self._seq_pointers),
                ("logits", self._logits),
            ):
                setattr(struct, name, ctypes.cast(array, dict(llama_batch._fields_)[name]))
        struct.n_tokens = self._rows
        return struct
