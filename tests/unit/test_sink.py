"""From other threads into the event loop: all of it, in order, with few wake-ups."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from engine.api.sink import AsyncSink, Mailbox
from engine.generation import Delta

ANSWERS, EVENTS = 8, 200


def test_events_of_many_threads_arrive_in_order() -> None:
    async def main() -> list[list[str]]:
        mailbox = Mailbox()
        sinks = [AsyncSink(mailbox) for _ in range(ANSWERS)]

        def put(sink: AsyncSink) -> None:
            for number in range(EVENTS):
                sink.put(Delta(str(number), ()))

        threads = [threading.Thread(target=put, args=(sink,)) for sink in sinks]
        for thread in threads:
            thread.start()
        found = []
        for sink in sinks:
            events = [await asyncio.wait_for(sink.get(), 30) for _ in range(EVENTS)]
            found.append([event.text for event in events if isinstance(event, Delta)])
            assert sink.backlog() == 0
        for thread in threads:
            thread.join()
        return found

    assert asyncio.run(main()) == [[str(number) for number in range(EVENTS)]] * ANSWERS


def test_one_step_of_many_answers_wakes_the_loop_once() -> None:
    async def main() -> int:
        mailbox = Mailbox()
        wakes = 0

        class Counting:
            def call_soon_threadsafe(self, call: Any) -> None:
                nonlocal wakes
                wakes += 1
                loop.call_soon_threadsafe(call)

        loop = mailbox.loop
        mailbox.loop = Counting()  # type: ignore[assignment]
        sinks = [AsyncSink(mailbox) for _ in range(ANSWERS)]
        for step in range(3):
            for sink in sinks:
                sink.put(Delta(str(step), ()))
            for sink in sinks:
                await asyncio.wait_for(sink.get(), 30)
            assert wakes == step + 1
        return wakes

    assert asyncio.run(main()) == 3


def test_a_loop_that_is_closed_has_no_readers() -> None:
    async def main() -> AsyncSink:
        return AsyncSink(Mailbox())

    sink = asyncio.run(main())
    sink.put(Delta("too late", ()))
    sink.put(Delta("again", ()))
    assert sink.backlog() > 0
