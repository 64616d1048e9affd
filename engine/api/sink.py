"""From the scheduler's and the store's thread into the event loop, where readers are."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from engine.generation import Delta, Event


class Mailbox:
    """Carries events of all answers from other threads into an event loop, which is woken once for all that wait."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._posted: deque[tuple[asyncio.Queue[Event], Event]] = deque()
        self._woken = False

    def post(self, to: asyncio.Queue[Event], event: Event) -> None:
        """Put an event into a queue of the loop; from any thread."""
        self._posted.append((to, event))
        if self._woken:  # a delivery begins by taking this back, so it sees all that was posted before
            return
        self._woken = True
        with contextlib.suppress(RuntimeError):  # a loop that is closed has no readers left
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        while self._posted:
            to, event = self._posted.popleft()
            to.put_nowait(event)


class AsyncSink:
    """An answer's events on their way to its reader in the event loop; counts the bytes that were not read yet."""

    def __init__(self, mailbox: Mailbox, ended: Callable[[], None] = lambda: None) -> None:
        self._mailbox = mailbox
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._put = self._taken = 0
        self._ended = ended

    def put(self, event: Event) -> None:
        self._put += _size(event)
        if not isinstance(event, Delta):
            self._ended()
        self._mailbox.post(self._events, event)

    def backlog(self) -> int:
        return self._put - self._taken

    async def get(self) -> Event:
        event = await self._events.get()
        self._taken += _size(event)
        return event


def _size(event: Event) -> int:
    """About how many bytes an event makes on the wire, from above."""
    if not isinstance(event, Delta):
        return 256
    proof = 0 if event.proof is None else 512 + 68 * len(event.proof.hashes)
    listed = sum(2 + len(token.top) for token in event.tokens if token.logprob is not None)
    return 320 + 4 * len(event.text) + 128 * listed + proof
