"""Providers whose list leaves out what stands in their log, whose log is not what it signed, whose clock runs ahead."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.made_up_model import MadeUpModel
from tests.sessions import PROVIDER, TIME, TRUST, made_up
from tests.simulator import KEY, LOG, LOGGED, Log, Provider, honest, other_model, seed, serve
from verifiable import limits
from verifiable.checking.verdict import Status
from verifiable.errors import VerificationError
from verifiable.manifest.chain import Chain
from verifiable.tlog.checkpoint import Checkpoint
from verifiable.wire.keys import PrivateKey
from verifier.campaign.campaign import audit_provider
from verifier.campaign.fetched import Auditor
from verifier.campaign.outcome import Outcome
from verifier.campaign.plan import ChallengePlan
from verifier.provider.client import Client
from verifier.provider.listing import SAMPLE, SHORT, Listing, read_listing, read_sample
from verifier.provider.published import Published
from verifier.provider.window import Known

CHEATED = (1, 2, 3, 4)


def world(log: Callable[[list[bytes]], Log] = Log) -> Provider:
    """Eight sessions, all in the log; the first four were computed by another model."""
    made = [honest(at, other_model if at in CHEATED else made_up, stated=LOGGED) for at in range(1, 9)]
    return Provider(made, log([each.head() for each in made]))


def audit(provider: Provider, folder: Path, count: int = 10, **options: Any) -> Outcome:
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        found = audit_provider(Auditor(MadeUpModel(), TRUST, folder), client, count, seed, **options)
        return Outcome(url, tuple(found[0]), found[1])


def codes(outcome: Outcome) -> dict[str, str | None]:
    return {str(verdict.session)[:2]: verdict.code for verdict in outcome.verdicts}


def hide(provider: Provider, numbers: Sequence[int]) -> None:
    """Leave sessions out of the list, and serve what is asked of them."""
    page = Provider.page

    def short(query: dict[str, str]) -> bytes:
        every = provider.recordings
        provider.recordings = {name: each for name, each in every.items() if int(name[:2], 16) not in numbers}
        try:
            return page(provider, query)
        finally:
            provider.recordings = every

    cast(Any, provider).page = short


def test_what_the_list_leaves_out_is_drawn_from_the_log(tmp_path: Path) -> None:
    assert audit(world(), tmp_path).challenge is not None
    provider = world()
    hide(provider, CHEATED)
    found = audit(provider, tmp_path)
    assert found.status is Status.FAILED
    assert found.challenge is not None
    assert found.challenge.population == 8
    assert set(found.challenge.listing.left_out) == {bytes([at]) * 16 for at in CHEATED}
    assert sum(code == "logits-differ" for code in codes(found).values()) == 4


def test_a_list_that_leaves_out_and_hands_out_nothing_is_no_pass(tmp_path: Path) -> None:
    provider = world()
    hide(provider, CHEATED)
    provider.withheld = {(bytes([at]) * 16).hex() for at in CHEATED}
    found = audit(provider, tmp_path)
    assert found.status is Status.INCONCLUSIVE
    assert {str(group[0].code) for group in found.findings()} >= {"list-differs"}
    facts = json.loads(json.dumps(found.to_json()))
    assert len(facts["challenge"]["list"]["left_out"]) == 4
    assert facts["exit_code"] == 3


def test_a_whole_list_is_no_finding_whatever_else_the_log_holds(tmp_path: Path) -> None:
    made = [honest(at, stated=LOGGED) for at in range(1, 5)]
    provider = Provider(made, Log([b"no head", *[each.head() for each in made], b"", made[0].head()]))
    found = audit(provider, tmp_path)
    assert found.status is Status.EXACT
    assert found.challenge is not None
    assert (found.challenge.listing.read, found.challenge.listing.logged) == (7, 7)
    # A session that is logged while the two are read must not be missed in a list that is older.
    assert next(path for path in provider.asked if path.startswith(("/v1/sessions?", "/log/"))) == "/log/checkpoint"
    (said,) = [note for note in found.caveats() if note.id == "list-not-compared"]
    assert said.detail == "2 are no heads by its manifest in force, or by one that was read there"


def test_what_was_signed_under_an_older_manifest_is_missed_in_the_list(tmp_path: Path) -> None:
    """A session key that was exchanged hides nothing: the log holds the manifest that named it."""
    made = [honest(at, stated=LOGGED) for at in range(1, 5)]
    older = LOGGED.sign(PROVIDER)
    provider = Provider(made, Log([older, *[each.head() for each in made]]))
    hide(provider, [4])
    newer = replace(
        LOGGED, valid_from=LOGGED.valid_from + 1, session_keys=(PrivateKey.generate("s", b"n" * 32).public,)
    )
    provider.stated = newer.sign(PROVIDER)
    found = audit(provider, tmp_path)
    assert found.challenge is not None
    assert found.challenge.listing.left_out == (made[3].session,)
    assert found.challenge.listing.others == 0


def test_an_honest_list_that_leaves_sessions_out_is_said_though_they_verify(tmp_path: Path) -> None:
    made = [honest(at, stated=LOGGED) for at in range(1, 5)]
    provider = Provider(made, Log([each.head() for each in made]))
    hide(provider, [2])
    found = audit(provider, tmp_path)
    assert {verdict.status for verdict in found.verdicts} == {Status.EXACT}
    assert len(found.verdicts) == 4
    assert found.status is Status.INCONCLUSIVE
    assert found.worst is not None
    assert found.worst.code == "list-differs"
    assert found.worst.found == f"without {'02' * 16}"
    assert "list-not-compared" not in {note.id for note in found.caveats()}


def test_a_session_that_is_listed_shorter_than_it_was_logged_is_drawn_as_it_was_logged(tmp_path: Path) -> None:
    made, longer = honest(1, stated=LOGGED), honest(1, stated=LOGGED, turns=2)
    provider = Provider([made], Log([longer.head(), made.head()]))
    provider.earlier = {(made.session.hex(), longer.log.size): longer}
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        published = Published.read(client, None, client.manifest(), [LOG.public])
        listing = read_listing(client, Known(Chain.of(TRUST), TRUST[0]), published)
    assert [entry.size for entry in listing.entries] == [longer.log.size]
    assert listing.left_out == (made.session,)


@pytest.mark.parametrize(
    "change",
    [
        lambda path, body: b"\x00\x01x" if "entries" in path else body,
        lambda path, body: body.replace(b'"entries": ["', b'"entries": ["AA') if "entries" in path else body,
        lambda path, body: b'{"entries": [], "path": []}' if "entries" in path else body,
        lambda path, body: b"no checkpoint" if path == "/log/checkpoint" else body,
    ],
)
def test_a_log_that_can_not_be_read_is_said(change: Callable[[str, bytes], bytes], tmp_path: Path) -> None:
    provider = world()
    provider.change = change
    found = audit(provider, tmp_path)
    assert found.challenge is not None
    assert found.challenge.listing.unread is not None
    assert "list-not-compared" in {note.id for note in found.caveats()}


class Static:
    """A client of a log of many entries, without HTTP."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.tree = log.tree()
        self.asked: list[list[int]] = []

    def log_entries(self, indices: Sequence[int], size: int) -> tuple[list[bytes], list[bytes]]:
        self.asked.append(list(indices))
        return [self.log.entries[at] for at in indices], self.tree.multiproof(indices, size)


def long_log(size: int, since: int = 0) -> tuple[Published, Static]:
    log = Log([at.to_bytes(4, "big") for at in range(size)])
    client: Any = Static(log)
    checkpoint = Checkpoint("acme/log", size, client.tree.root())
    return Published(client, None, b"", [LOG.public], b"", checkpoint, since), client


@pytest.mark.parametrize(("size", "since"), [(1, 0), (257, 9), (SHORT, 0), (SHORT + 1, 0), (5000, 4900), (9000, 2000)])
def test_entries_are_shown_to_be_under_the_checkpoint(size: int, since: int) -> None:
    log, client = long_log(size, since)
    found, drawn = read_sample(log, random.Random(5))
    assert set(found) <= set(client.log.entries)
    assert len(client.asked) == 1
    if size <= SHORT:
        assert (found, drawn) == (client.log.entries, size)
    else:
        newer = [entry for entry in found if int.from_bytes(entry, "big") >= since]
        assert drawn == SAMPLE
        assert SAMPLE <= len(found) <= SAMPLE + min(SAMPLE, size - since) * bool(since)
        if since:
            assert len(newer) >= min(SAMPLE, size - since)
    at = client.asked[0][-1]
    client.log.entries[at] = b"rewritten"
    with pytest.raises(VerificationError, match="not what it signed"):
        read_sample(log, random.Random(5))


def test_a_share_of_a_long_log_notices_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log too long to be read whole, entries are drawn after the list is there, and the plan says the chance."""
    monkeypatch.setattr("verifier.provider.listing.SHORT", 100)
    made = [honest(at, stated=LOGGED) for at in range(1, 9)]
    fill = [f"entry {at}".encode() for at in range(1000)]
    provider = Provider(made, Log([each.head() for each in made] + fill))
    tree = provider.log.tree()
    provider.log.tree = lambda size=None: tree  # type: ignore[method-assign]
    plans: list[ChallengePlan] = []
    found = audit(provider, tmp_path, announce=plans.append)
    assert found.challenge is not None
    said = (
        "512 of its 1,008 entries were read, drawn at random: a list that leaves out 1% of them is caught with at least"
    )
    assert any(f"{said} 99.4%" in line for line in plans[0].assumes())
    (note,) = [note for note in found.caveats() if note.id == "list-not-compared"]
    assert note.detail.startswith(f"{said} 99.4%")
    asked = [path.partition("?")[0] for path in provider.asked]
    assert asked.index("/log/checkpoint") < asked.index("/v1/sessions") < asked.index("/v1/log/entries")


def test_a_list_cut_to_what_was_asked_of_the_log_is_found_out(tmp_path: Path) -> None:
    """A provider that hears first which entries are read could list just those: it has to list before it hears."""
    provider = world()
    hide(provider, CHEATED)
    heard: set[str] = set()
    page, shown = provider.page, provider.log.shown

    def hears(indices: Sequence[int], size: int) -> bytes:
        heard.update(provider.log.entries[at].hex() for at in indices)
        return shown(indices, size)

    provider.log.shown = hears  # type: ignore[method-assign]
    cast(Any, provider).page = lambda query: page(query) if not heard else pytest.fail("the list came last")
    found = audit(provider, tmp_path)
    assert found.challenge is not None
    assert len(found.challenge.listing.left_out) == 4


def test_heads_that_are_left_out_or_dated_ahead_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [honest(at, stated=LOGGED) for at in range(1, 5)]
    provider = Provider(made, Log([each.head() for each in made]))
    found = audit(provider, tmp_path, before=TIME - 1)
    assert found.challenge is not None
    assert (found.challenge.population, found.challenge.plan.excluded) == (0, 4)
    assert "sessions-too-young" in {note.id for note in found.caveats()}
    assert any("younger than the round" in line for line in found.challenge.plan.assumes())
    for early, ahead in ((0, 0), (limits.CLOCK_SKEW + 10_000, 4)):
        clock = SimpleNamespace(time_ns=lambda early=early: (TIME - early) * 1_000_000)
        monkeypatch.setattr("verifier.campaign.weigh.time", clock)
        found = audit(provider, tmp_path)
        assert found.challenge is not None
        assert found.challenge.plan.ahead == ahead
        assert ("heads-ahead" in {note.id for note in found.caveats()}) is bool(ahead)
        assert found.status is Status.EXACT


def test_nothing_is_said_of_a_provider_without_a_log(tmp_path: Path) -> None:
    found = audit(Provider([honest(1)]), tmp_path)
    assert found.challenge is not None
    assert found.challenge.listing == Listing(found.challenge.listing.entries)
