"""What is read of a log is what its checkpoint signed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator import LOG, Log
from verifiable.errors import VerificationError
from verifiable.tlog.checkpoint import Checkpoint
from verifiable.tlog.proof import Inclusion
from verifier.provider.published import Published
from verifier.provider.remember import Contradiction


class Static:
    """A client of a log, without HTTP."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def log_file(self, path: str, most: int) -> bytes:
        return self.log.bundle(path) if "entries" in path else self.log.tile(path)


def published(size: int) -> tuple[Published, Log]:
    log = Log([b"entry %d" % at for at in range(size)])
    tree = log.tree()
    log.tree = lambda size=None: tree  # type: ignore[method-assign]
    client: Any = Static(log)
    return Published(client, None, b"", [LOG.public], b"", Checkpoint("acme/log", size, tree.root())), log


@pytest.mark.parametrize(("size", "first", "end"), [(1, 0, 1), (300, 0, 300), (1000, 255, 257), (1000, 700, 1000)])
def test_a_part_of_a_log_is_shown_to_be_under_the_checkpoint(size: int, first: int, end: int) -> None:
    found = published(size)[0].range(first, end)
    assert list(found.leaves) == list(range(first, end))
    for at in {first, end - 1}:
        changed, log = published(size)
        log.entries[at] = b"rewritten"
        with pytest.raises(VerificationError, match="not what it signed"):
            changed.range(first, end)


def proven(checkpoint: Checkpoint) -> Inclusion:
    """What a receipt's proof shows under a checkpoint."""
    return Inclusion(LOG.public, 0, checkpoint, b"")


def test_two_checkpoints_are_judged_by_tiles_that_were_signed_alone() -> None:
    """Whoever carries them can change a proof and the tiles; without either, nothing is said of the log."""
    log, small = published(700)[0], published(300)[0].checkpoint
    log.client.consistency = lambda old, new: []  # type: ignore[method-assign]
    log.check(proven(small))  # honest tiles show it without a proof
    forged, other = published(700)
    forged.client.consistency = lambda old, new: []  # type: ignore[method-assign]
    other.entries[5] = b"rewritten"
    tree = Log(other.entries).tree()
    other.tree = lambda size=None: tree  # type: ignore[method-assign]
    with pytest.raises(VerificationError) as caught:
        forged.check(proven(small))
    assert caught.value.code == "no-evidence"
    assert not isinstance(caught.value, Contradiction)
    rewritten, _ = published(700)
    rewritten.client.consistency = lambda old, new: []  # type: ignore[method-assign]
    with pytest.raises(Contradiction):
        rewritten.check(proven(Checkpoint("acme/log", 300, bytes(32))))
