"""From token bytes to text: whole characters, stop strings across tokens, and one digest for all readers."""

from __future__ import annotations

import hashlib

import pytest

from verifiable.session.delivery import TextStream, deliver


def feed(pieces: list[bytes], *stops: str) -> tuple[list[str], bool, bytes]:
    stream = TextStream(stops)
    given = []
    for piece in pieces:
        given.append(stream.feed(piece))
        if stream.stopped:
            return given, True, stream.digest()
    given.append(stream.finish())
    return given, False, stream.digest()


def test_text_is_given_as_soon_as_it_is_certain() -> None:
    given, stopped, digest = feed([b"Hel", b"lo", b"", b"!"])
    assert given == ["Hel", "lo", "", "!", ""]
    assert not stopped
    assert digest == hashlib.sha256(b"Hello!").digest()


def test_characters_come_whole() -> None:
    euro = "€".encode()
    assert feed([euro[:1], euro[1:2], euro[2:] + b"x"])[0] == ["", "", "€x", ""]
    assert feed([b"a" + euro[:2]])[0] == ["a", ""]  # incomplete at the end: left out
    assert "".join(feed([b"a\xffb", b"\xc3", b"("])[0]) == "a\ufffdb\ufffd("


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "index"),
    [
        ([b"one STOP two"], ("STOP",), "one ", 0),
        ([b"one S", b"TO", b"P two", b"x"], ("STOP",), "one ", 2),
        ([b"one S", b"TO", b"N"], ("STOP",), "one STON", None),
        ([b"aaa", b"ab"], ("aab",), "aa", 1),
        ([b"ab", b"c"], ("abcd", "bc"), "a", 1),
        ([b"xSTOP"], ("STOP", "xS"), "", 0),
        ([b"STOP"], ("STOP",), "", 0),
        ([b"a", b"b"], ("ab",), "", 1),
        ([b"S", b"T"], ("STOP",), "ST", None),
        (["€".encode()[:2], "€".encode()[2:]], ("€",), "", 1),
        ([], ("x",), "", None),
    ],
)
def test_stop_strings_end_the_text(pieces: list[bytes], stops: tuple[str, ...], text: str, index: int | None) -> None:
    assert deliver(pieces, stops) == (text, index)
    given, stopped, digest = feed(pieces, *stops)
    assert "".join(given) == text
    assert stopped == (index is not None)
    assert digest == hashlib.sha256(text.encode()).digest()


def test_nothing_that_may_become_a_stop_string_is_given_early() -> None:
    stream = TextStream(("END",))
    assert stream.feed(b"the E") == "the "
    assert stream.feed(b"N") == ""
    assert stream.feed(b"E") == "ENE"[:2]  # "EN" can no longer be the stop's begin, the last E can
    assert stream.feed(b"ND more") == ""
    assert stream.stopped
    assert stream.digest() == hashlib.sha256(b"the EN").digest()
