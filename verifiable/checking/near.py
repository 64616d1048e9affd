"""A text that is nearly the committed one: what programs do to a text that is saved or copied, undone."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Callable, Sequence

LONGEST = 1 << 20
"""Characters of a text up to which this is tried: a hash for each combination."""

SPACES = " \t\r\n"
Change = tuple[str, Callable[[str], str]]


def _same(text: str) -> str:
    return text


NOTHING: Change = ("", _same)
_ORDER: Sequence[Sequence[Change]] = (
    (NOTHING, ("a byte order mark", lambda text: text.removeprefix("\ufeff"))),
    (
        NOTHING,
        ("line endings", lambda text: text.replace("\r\n", "\n").replace("\r", "\n")),
        ("line endings", lambda text: text.replace("\r\n", "\n").replace("\n", "\r\n")),
    ),
    (
        NOTHING,
        *[
            ("Unicode normalisation", lambda text, form=form: unicodedata.normalize(form, text))
            for form in ("NFC", "NFD")
        ],
    ),
    (
        NOTHING,
        ("spaces at its end", lambda text: text.rstrip(SPACES)),
        ("spaces at its end", lambda text: text.rstrip(SPACES) + "\n"),
        ("spaces at its end", lambda text: text.rstrip(SPACES) + " "),
        ("spaces at its beginning", lambda text: f" {text.lstrip(SPACES)}"),
        ("spaces at its beginning", lambda text: text.lstrip(SPACES)),
        ("spaces at its beginning and end", lambda text: text.strip(SPACES)),
    ),
)
"""What may have happened, in the order in which it is undone; of each line one thing."""


def difference(text: str, committed: bytes) -> str | None:
    """In what alone a text differs from the one with the digest `committed`; None where it is something else."""
    if len(text) > LONGEST:
        return None
    for changes in sorted(itertools.product(*_ORDER), key=lambda each: sum(change is not NOTHING for change in each)):
        changed = text
        for _, undo in changes:
            changed = undo(changed)
        if hashlib.sha256(changed.encode("utf-8", "surrogatepass")).digest() == committed:
            return " and ".join(name for name, _ in changes if name)
    return None
