"""From token bytes to delivered text: one rule for the stream, the whole answer and the auditor.

Bytes are decoded as UTF-8, an invalid byte becoming U+FFFD; a character that is still incomplete when the answer ends
is left out. The text ends just before the first stop string, and nothing that could still become one is handed out
early.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable


class TextStream:
    """Turns token bytes into text deltas. `stopped` is true once a stop string was found; then feed no more."""

    __slots__ = ("_decoder", "_hash", "_held", "_longest", "_simple", "_stops", "stopped")

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = stops
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self._hash = hashlib.sha256()
        self._simple = not stops  # ASCII is its own text: no stop strings, and no bytes of a character before it
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """The text that this token's bytes make certain; may be empty, is always whole characters."""
        if self._simple and piece.isascii():
            self._hash.update(piece)
            return piece.decode()
        text = self._held + self._decode(piece)
        if not self._stops:
            return self._give(text)
        cut = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=-1)
        if cut >= 0:
            self.stopped = True
            self._held = ""
            return self._give(text[:cut])
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return self._give(text[: len(text) - keep])

    def finish(self) -> str:
        """What was held back for a stop string that never came. Incomplete bytes are dropped."""
        text, self._held = self._held, ""
        return self._give(text)

    def digest(self) -> bytes:
        """SHA-256 of the UTF-8 bytes handed out so far."""
        return self._hash.digest()

    def _decode(self, piece: bytes) -> str:
        text = self._decoder.decode(piece)
        pending = self._decoder.getstate()[0]
        self._simple = not (pending or self._stops)
        # Python waits for the third byte of a surrogate. None makes it a character, so it is invalid already: other
        # decoders replace its two bytes at once, and at the end of an answer they would else be left out.
        if len(pending) == 2 and pending[0] == 0xED and pending[1] >= 0xA0:
            self._decoder.reset()
            text += "\ufffd\ufffd"
        return text

    def _give(self, text: str) -> str:
        self._hash.update(text.encode())
        return text

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins some stop string."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0


def deliver(pieces: Iterable[bytes], stops: tuple[str, ...] = ()) -> tuple[str, int | None]:
    """The text that an honest provider delivers for these token bytes.

    Returns the text and, when a stop string ended it, the index of the token that completed the string (else None).
    """
    stream = TextStream(stops)
    parts = []
    for index, piece in enumerate(pieces):
        parts.append(stream.feed(piece))
        if stream.stopped:
            return "".join(parts), index
    parts.append(stream.finish())
    return "".join(parts), None
