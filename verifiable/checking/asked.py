"""Step 10: what a client has kept of its own request, held against what was committed.

All of it rests on the client's copy. Where it differs, either the copy is not what was sent, or somebody between client
and model changed it: a proxy, or the provider.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from verifiable import limits
from verifiable.checking.caveats import Caveat
from verifiable.checking.checks import OpenedSession, OpenedTurn, check_follows, check_not_another, span_of
from verifiable.errors import VerificationError
from verifiable.request.exchange import Asked
from verifiable.request.request import Request
from verifiable.session.records import Finish, NonceSource, Turn
from verifiable.session.structure import TurnSpan

_YOURS = (
    "This rests on your own copy: make sure first that it is what you sent. If it is, somebody between you and the "
    "model changed it."
)


def check_asked(
    session: OpenedSession, turn: int, asked: Asked, committed: Request | None = None, signed: int | None = None
) -> str | None:
    """Hold a client's copy against what the turn committed to. Returns what was compared, None where nothing was given.

    Args:
        turn: which turn the copy is of.
        committed: the request that evidence shows: where it is the committed one, the error says what differs.
        signed: the time of the receipt's head, where the session was opened under another (ms).

    Raises:
        VerificationError: `request-differs`, `nonce-differs`, `time-differs`, as `check_follows`; `other-turn` for
            the request of another turn; `incomplete` for no such turn.
    """
    leaf = span_of(session, turn).turn
    compared = []
    if asked.request is not None:
        _check_request(session, leaf, asked.request, committed)
        check_follows(session, leaf, asked.request)
        compared.append("request")
    nonce = asked.nonce if asked.request is None or asked.nonce is not None else asked.request.nonce
    if nonce is not None:
        _check_nonce(leaf, nonce)
        compared.append("nonce")
    if _check_times(session, turn, asked, session.head.time if signed is None else signed):
        compared.append("times")
    return f"{', '.join(compared)} as you sent them are those of turn {turn}" if compared else None


def caveats(asked: Asked, turn: int, signed: int) -> list[Caveat]:
    """What a verdict does not rest on for want of the client's own copy of that turn, under a head of that time."""
    missing = [] if asked.texts else [Caveat("text-not-given")]
    if asked.request is None:
        return [Caveat("request-not-given"), *missing]
    if asked.received is None or asked.sent is None:
        return [Caveat("times-not-given"), *missing]
    late = turn > 0 and signed > asked.received + limits.CLOCK_SKEW
    return [Caveat("answer-time-not-shown"), *missing] if late else missing


def of_others(asked: Asked, mine: int, opened: Sequence[int]) -> list[Caveat]:
    """What a client's own copy of turn `mine` leaves open about the other turns that evidence opens."""
    given = {"request-not-given": asked.request is not None, "text-not-given": bool(asked.texts)}
    others = tuple(number for number in opened if number != mine)
    return [Caveat(name, turns=others) for name, some in given.items() if some and others]


def of_turns(spans: Sequence[TurnSpan], requests: Mapping[int, Request]) -> list[Caveat]:
    """What a verdict on turns does not rest on, by what they committed to and by their requests, where known."""
    numbers = {
        "provider-nonce": [span.number for span in spans if span.turn.nonce_source is NonceSource.PROVIDER],
        "manifest-not-pinned": [number for number, request in requests.items() if request.manifest is None],
        "ending-unexplained": [span.number for span in spans if span.end.finish in (Finish.CANCELLED, Finish.ERROR)],
    }
    return [Caveat(name, turns=tuple(some)) for name, some in numbers.items() if some]


def turn_meant(turns: Sequence[OpenedTurn], asked: Asked) -> int:
    """The turn that a client's copy is of, where no receipt says it: the last opened that it fits, else the last."""
    digests = {hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in asked.texts}
    for turn in reversed(turns):
        if asked.request is None and turn.end.text_digest in digests:
            return turn.number
        if asked.request is not None and turn.leaf.request_digest == asked.request.digest():
            return turn.number
    return max((turn.number for turn in turns), default=0)


def _check_request(session: OpenedSession, leaf: Turn, mine: Request, committed: Request | None) -> None:
    if mine.digest() == leaf.request_digest:
        return
    fits = [span.number for span in session.spans if span.turn.request_digest == mine.digest()]
    check_not_another(leaf.turn, "request", fits)
    expected, found = mine.digest().hex(), leaf.request_digest.hex()
    what = f"turn {leaf.turn} answers another request than yours"
    if committed is not None and committed.digest() == leaf.request_digest:
        names, expected, found = _parts(mine, committed)
        what += f": {', '.join(names)} {'differ' if len(names) > 1 else 'differs'}"
    raise VerificationError(what, code="request-differs", expected=expected, found=found, hint=_YOURS)


def _parts(mine: Request, committed: Request) -> tuple[list[str], str, str]:
    """The parts of two requests that differ, and their values in each."""
    one, other = json.loads(mine.canonical), json.loads(committed.canonical)
    if one["path"] != other["path"]:
        return ["path"], one["path"], other["path"]
    one, other = one["body"], other["body"]
    names = [name for name in sorted({**one, **other}) if _text(one, name) != _text(other, name)]
    ours, theirs = ({name: each[name] for name in names if name in each} for each in (one, other))
    return names, json.dumps(ours, ensure_ascii=False), json.dumps(theirs, ensure_ascii=False)


def _text(body: Mapping[str, Any], name: str) -> str | None:
    """A field as text: Python takes True for 1."""
    return json.dumps(body[name], sort_keys=True) if name in body else None


def _check_nonce(leaf: Turn, nonce: bytes) -> None:
    if leaf.nonce_source is not NonceSource.CLIENT or leaf.nonce != nonce:
        raise VerificationError(
            f"turn {leaf.turn} does not use your nonce",
            code="nonce-differs",
            expected=f"client: {nonce.hex()}",
            found=f"{leaf.nonce_source.name.lower()}: {leaf.nonce.hex()}",
            hint=_YOURS,
        )


def _check_times(session: OpenedSession, turn: int, asked: Asked, signed: int) -> bool:
    """A session is opened for its first turn's request, and not after an answer; a head over a turn is signed after its
    request was sent. It may be signed long after the answer: a receipt can be fetched again.

    Returns whether a time was given.
    """
    opened = session.opened.time
    low = None if asked.sent is None else asked.sent - limits.CLOCK_SKEW
    high = None if asked.received is None else asked.received + limits.CLOCK_SKEW
    late = high is not None and opened > high
    early = low is not None and (signed if turn else opened) < low
    if late or early:
        found = opened if late or not turn else signed
        what = "the session was not opened when your request was on its way"
        raise VerificationError(
            what if found == opened else "the answer was signed before your request was sent",
            code="time-differs",
            expected=f"{'any time' if low is None else low} to {'any time' if high is None else high} (ms)",
            found=f"{found} (ms)",
            hint=f"Clocks may be {limits.CLOCK_SKEW // 60_000} minutes apart. Is your own clock right? {_YOURS}",
        )
    return low is not None or high is not None
