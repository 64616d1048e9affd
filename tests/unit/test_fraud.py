"""Fraud files prove what they say to anyone, prove nothing else, and are smaller than the evidence they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.made_up_model import MadeUpModel
from tests.sessions import PROVIDER, SESSION, TIME, TRUST, Recording, ask, made_up, manifest, recording
from verifiable.checking.checks import check_evidence, check_head
from verifiable.checking.fraud import Fraud, FraudKind, narrowed
from verifiable.checking.verdict import Status
from verifiable.cli import main as command
from verifiable.errors import MalformedError, StoreError, VerifiableError, VerificationError
from verifiable.limits import MERGE_DELAY
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import choose
from verifiable.session import records
from verifiable.session.evidence import Kind as EvidenceKind
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.merkle import Tree, leaf_hash, prefix_path
from verifiable.tlog.tiles import Tile
from verifiable.wire.keys import PrivateKey
from verifier.campaign.fetched import Auditor, Fetched, fetch
from verifier.offline import frauds
from verifier.provider.client import Listed
from verifier.provider.continued import check_growth
from verifier.provider.published import check_log
from verifier.provider.remember import Contradiction, Memory

DAY = MERGE_DELAY // 2
LOG = PrivateKey.generate("acme/log", b"l" * 32)


def stated(**changes: Any) -> bytes:
    return manifest(log=LOG.public, **changes).sign(PROVIDER)


def head(size: int = 5, root: bytes = b"r" * 32, session: bytes = b"\x07" * 16, time: int = TIME) -> bytes:
    return Head(session, size, root, manifest(log=LOG.public).digest(), time).sign(SESSION)


def note(size: int = 5, root: bytes = b"r" * 32) -> bytes:
    return sign_checkpoint(Checkpoint("acme/log", size, root), LOG)


def liar(turns: int = 2) -> Recording:
    """A provider that replaced the fourth token of its first answer."""

    def draw(entries: Entries, params: Any, key: bytes, position: int) -> int:
        token = choose(entries, params, key, position)
        if position != 10:
            return token
        return int(next(other for other in entries.ids if other != token))

    made = Recording(draws=draw)
    for _ in range(turns):
        made.turn(ask(max_tokens=12), range(1, 8), made_up)
    return made


def logged(missing: bytes, later: int = MERGE_DELAY + 1, more: tuple[bytes, ...] = ()) -> Fraud:
    entries = (*(head(session=bytes([at]) * 16, time=TIME + at) for at in range(1, 5)), *more)
    entries = (*entries, head(session=b"\x63" * 16, time=TIME + later))
    return among(missing, entries)


def among(missing: bytes, entries: Sequence[bytes], shown: Iterable[int] | None = None) -> Fraud:
    """The file that shows some entries of a log."""
    tree = Tree.from_leaves(map(leaf_hash, entries))
    leaves = {at: entries[at] for at in (range(len(entries)) if shown is None else shown)}
    signed = (missing, note(len(entries), tree.root()))
    return Fraud(FraudKind.MISSING, (stated(),), signed, Opening.of(tree, leaves))


def test_two_heads_prove_two_histories():
    made = Fraud(FraudKind.TWO_HEADS, (stated(),), (head(), head(root=b"s" * 32)))
    proven = Fraud.parse(made.encode()).verify(TRUST)
    assert (proven.code, proven.session) == ("two-histories", b"\x07" * 16)
    two = Fraud(FraudKind.TWO_HEADS, (stated(), stated(k=20)), made.signed)
    assert two.verify(TRUST).code == "two-histories"


@pytest.mark.parametrize("other", [head(), head(size=6, root=b"s" * 32), head(root=b"s" * 32, session=b"\x08" * 16)])
def test_heads_that_do_not_contradict_each_other_prove_nothing(other):
    with pytest.raises(VerificationError, match="contradict") as caught:
        Fraud(FraudKind.TWO_HEADS, (stated(),), (head(), other)).verify(TRUST)
    assert caught.value.code == "nothing-checked"


def test_two_checkpoints_prove_two_histories_of_the_log():
    made = Fraud(FraudKind.TWO_CHECKPOINTS, (stated(),), (note(), note(root=b"s" * 32)))
    assert Fraud.parse(made.encode()).verify(TRUST).code == "two-histories"
    with pytest.raises(VerificationError, match="contradict"):
        replace(made, signed=(note(), note(6))).verify(TRUST)


def test_a_token_is_contradicted_by_its_own_record():
    evidence = liar().evidence(EvidenceKind.FULL)
    opened = check_evidence(evidence, TRUST)
    made = frauds.of_token(opened, TRUST, 0, 3)
    assert made is not None
    proven = Fraud.parse(made.encode()).verify(TRUST)
    assert (proven.code, proven.turn, proven.position) == ("token-not-sampled", 0, 10)
    assert len(made.opening.leaves) == 2
    assert len(made.encode()) < len(evidence.encode()) / 4
    with pytest.raises(VerificationError, match="follows"):
        frauds.of_token(opened, TRUST, 0, 2)
    assert frauds.of_token(check_evidence(liar().evidence(EvidenceKind.TOKENS), TRUST), TRUST, 0, 3) is None


def test_a_narrowed_opening_gives_the_same_root():
    made = recording(3, tokens=9)
    for kind in (EvidenceKind.FULL, EvidenceKind.TOKENS):
        opening = made.evidence(kind).opening
        tree = made.log.tree
        for keep in ({0}, {1, 2}, set(opening.leaves), {0, max(opening.leaves)}):
            keep &= set(opening.leaves)
            small = narrowed(opening, tree.size, keep)
            small.check(tree.size, tree.root())
            assert set(small.leaves) == keep


def test_a_head_that_the_log_lacks_past_the_delay_is_fraud():
    made = logged(head())
    assert Fraud.parse(made.encode()).verify(TRUST).code == "missing-from-log"
    assert "48 h, which is the protocol's" in str(frauds.verify(made, TRUST).hint)
    hour = frauds.verify(logged(head(), later=3_600_001), TRUST, 3_600_000)
    assert (hour.status, hour.code) == (Status.FAILED, "missing-from-log")
    assert "a merge delay of 1 h, which you named: it proves nothing unless the provider promised it" in str(hour.hint)
    assert "a merge delay of 2 s, which" in str(frauds.verify(made, TRUST, 2000).hint)


def test_a_part_of_the_log_is_enough_where_the_head_would_stand_in_it():
    """So the file does not grow with the log."""
    entries = [head(session=(at + 1000).to_bytes(16, "big"), time=TIME + at * DAY // 4) for at in range(-400, 400)]
    made = among(head(time=TIME), entries, range(392, 409))
    proven = Fraud.parse(made.encode()).verify(TRUST)
    assert (proven.code, proven.found) == ("missing-from-log", "none among entries 392 to 408 of 800")
    assert len(made.encode()) < 17 * 400 + 3000
    for shown in (range(393, 409), range(392, 408)):
        with pytest.raises(VerificationError, match="may stand"):
            among(head(time=TIME), entries, shown).verify(TRUST)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (logged(head(), later=MERGE_DELAY - 1), "about to take it in"),
        (logged(head(), more=(head(),)), "has the head"),
        (logged(head(), more=(head(size=9),)), "has the head"),
        (among(head(), [head(session=bytes(16), time=TIME + at) for at in (0, DAY, 2 * DAY)], (1, 2)), "stand before"),
        (
            among(head(), [head(session=bytes(16), time=TIME + at) for at in (2 * DAY, DAY, 2 * DAY)], (0, 1)),
            "stand after",
        ),
        (among(head(), [head(session=bytes(16), time=TIME + at) for at in (0, 1, 2 * DAY)], (0, 2)), "left out"),
    ],
)
def test_a_log_that_may_still_be_honest_proves_nothing(made, why):
    with pytest.raises(VerificationError, match=why):
        made.verify(TRUST)


def all_kinds() -> list[Fraud]:
    token = frauds.of_token(check_evidence(liar().evidence(EvidenceKind.FULL), TRUST), TRUST, 0, 3)
    assert token is not None
    return [
        Fraud(FraudKind.TWO_HEADS, (stated(),), (head(), head(root=b"s" * 32))),
        Fraud(FraudKind.TWO_CHECKPOINTS, (stated(),), (note(), note(root=b"s" * 32))),
        token,
        logged(head()),
    ]


@pytest.mark.parametrize("made", all_kinds(), ids=lambda made: made.kind.name.lower())
def test_every_changed_byte_is_noticed_and_no_stranger_is_accused(made: Fraud):
    data = made.encode()
    assert frauds.verify(data, TRUST).status is Status.FAILED
    step = max(1, len(data) // 60)
    for at in range(0, len(data), step):
        changed = bytearray(data)
        changed[at] ^= 1
        verdict = frauds.verify(bytes(changed), TRUST)
        assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "nothing-checked")
    stranger = PrivateKey.generate("acme", b"q" * 32)
    verdict = frauds.verify(data, [stranger.public])
    assert (verdict.status, verdict.details) == (Status.INCONCLUSIVE, frauds.NothingProven("untrusted-key"))


def test_a_file_that_is_none_is_the_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Neither a verdict on the accused nor one on the accuser: what was named is another file."""
    path, trust = tmp_path / "file", PROVIDER.public.vkey()
    damaged = logged(head()).encode()[:-1]
    for option, junk in (("--fraud", b"junk"), ("--fraud", damaged), ("--fork", b"junk"), ("--fork", b"{}")):
        path.write_bytes(junk)
        assert command(["verify", option, str(path), "--trust", trust]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert "error: " in told.err


def test_a_file_of_the_wrong_shape_is_malformed():
    two = Fraud(FraudKind.TWO_HEADS, (stated(),), (head(), head(root=b"s" * 32)))
    opened = recording().evidence().opening
    for bad in (
        replace(two, manifests=()),
        replace(two, manifests=(stated(),) * 3),
        replace(two, signed=(head(),)),
        replace(two, opening=opened),
        replace(two, opening=Opening({0: head()}, ())),
        replace(two, kind=FraudKind.TOKEN),
        replace(two, kind=FraudKind.TWO_CHECKPOINTS, manifests=(stated(), stated())),
    ):
        with pytest.raises(MalformedError):
            Fraud.parse(bad.encode())


def test_what_the_auditor_saw_it_remembers_across_audits(tmp_path: Path):
    def beside(size: int, root: bytes) -> list[int]:
        found = Memory(tmp_path, TRUST).head(check_head(stated(), head(size=size, root=root), TRUST))
        return [each.head.size for each in found]

    assert Memory(tmp_path, TRUST).head(check_head(stated(), head(), TRUST)) == ()
    assert [beside(9, b"t" * 32), beside(12, b"u" * 32), beside(7, b"v" * 32)] == [[5], [9], [5, 9]]
    with pytest.raises(Contradiction) as caught:
        Memory(tmp_path, TRUST).head(check_head(stated(), head(root=b"s" * 32), TRUST))
    assert caught.value.code == "two-histories"
    assert caught.value.fraud is not None
    assert caught.value.fraud.verify(TRUST).code == "two-histories"


def test_what_was_seen_is_known_whoever_else_is_trusted(tmp_path: Path):
    more = (PrivateKey.generate("other", b"x" * 32).public, *TRUST)
    Memory(tmp_path, TRUST).head(check_head(stated(), head(), TRUST))
    Memory(tmp_path, TRUST).checkpoint(stated(), note())
    with pytest.raises(Contradiction):
        Memory(tmp_path, more).head(check_head(stated(), head(root=b"s" * 32), more))
    with pytest.raises(Contradiction):
        Memory(tmp_path, more).checkpoint(stated(), note(root=b"s" * 32))


def test_another_providers_session_of_the_same_id_contradicts_nothing(tmp_path: Path):
    stranger = PrivateKey.generate("acme", b"x" * 32)
    memory = Memory(tmp_path, (*TRUST, stranger.public))
    memory.head(check_head(stated(), head(), memory.trust))
    theirs = manifest(log=LOG.public).sign(stranger)
    assert memory.head(check_head(theirs, head(root=b"s" * 32), memory.trust)) == ()


def test_a_log_that_forks_or_shrinks_is_noticed(tmp_path: Path):
    memory = Memory(tmp_path, TRUST)
    assert memory.checkpoint(stated(), note())[0] is None
    with pytest.raises(Contradiction) as caught:
        memory.checkpoint(stated(), note(root=b"s" * 32))
    assert caught.value.fraud is not None
    assert caught.value.fraud.verify(TRUST).code == "two-histories"
    with pytest.raises(Contradiction, match="two roots"):
        memory.checkpoint(stated(), note(9))  # caught once, caught for good
    memory = Memory(tmp_path / "other", TRUST)
    memory.checkpoint(stated(), note())
    with pytest.raises(VerificationError, match="shorter") as shrunk:  # an old copy, for all that is signed
        memory.checkpoint(stated(), note(4))
    assert shrunk.value.code == "no-evidence"


def test_damaged_state_is_an_error_and_not_forgotten(tmp_path: Path):
    memory = Memory(tmp_path, TRUST)
    memory.head(check_head(stated(), head(), TRUST))
    path = next(tmp_path.rglob("*.seen"))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):  # the auditor's own file says nothing about a provider
        memory.head(check_head(stated(), head(size=6), TRUST))
    data[40] ^= 1
    path.unlink()
    path.with_stem("0" * 64).write_bytes(data)  # whole, but not what that name is of
    with pytest.raises(StoreError):
        memory.head(check_head(stated(), head(size=6), TRUST))


class Provider:
    """Answers an auditor's questions about one session and one log, truly or not."""

    def __init__(self, made: Recording) -> None:
        self.made = made
        self.receipts = {made.log.size: made.receipt().encode()}
        self.entries = [bytes([at]) for at in range(20)]
        self.proves: Callable[[Tree, int, int], list[bytes]] = lambda tree, old, new: list(
            tree.consistency_proof(old, new)
        )
        self.size = 10

    def receipt(self, session: bytes, size: int | None = None) -> bytes:
        return self.receipts[size or max(self.receipts)]

    def manifest(self) -> bytes:
        return stated()

    def checkpoint(self) -> bytes:
        return note(self.size, self.tree(self.size).root())

    def consistency(self, old: int, new: int) -> list[bytes]:
        return self.proves(self.tree(new), old, new)

    def log_file(self, path: str, most: int) -> bytes:
        return b"".join(map(leaf_hash, self.entries[: Tile.parse(path).width]))

    def tree(self, size: int) -> Tree:
        return Tree.from_leaves(map(leaf_hash, self.entries[:size]))


def grow(memory: Memory, client: Any, made: Recording) -> None:
    """What an audit does with a session's evidence, if it remembers."""
    opened = check_evidence(made.evidence(), TRUST)
    check_growth(client, opened, memory.head(opened.session.signed))


def test_a_session_that_grew_must_still_tell_what_it_told(tmp_path: Path):
    memory: Any = Memory(tmp_path, TRUST)
    made = recording(1)
    client: Any = Provider(made)
    grow(memory, client, made)
    old = made.log.size
    made.turn(ask(max_tokens=5), range(1, 9), made_up)
    client.receipts[made.log.size] = made.receipt().encode()
    grow(memory, client, made)
    other = recording(1, body={"temperature": 0.1})  # the same session, told otherwise, and grown
    other.turn(ask(max_tokens=5), range(1, 9), made_up)
    other.turn(ask(max_tokens=5), range(1, 9), made_up)
    with pytest.raises(VerifiableError) as caught:
        grow(memory, client, other)
    assert getattr(caught.value, "code", "") == "two-histories"
    shorter = recording(1)
    assert shorter.log.size == old
    signed = check_evidence(shorter.evidence(), TRUST).session.signed
    with pytest.raises(Contradiction) as rolled:
        memory.check_listed(signed)
    assert rolled.value.code == "list-differs"


def test_a_longer_history_that_was_seen_before_must_continue_this_one(tmp_path: Path):
    """The provider is asked for a proof of that: none, one that is none, another history's, and the right one."""
    longer = recording(1)
    longer.turn(ask(max_tokens=5), range(1, 9), made_up)
    told = recording(1)
    other = recording(1, body={"temperature": 0.1})
    fork = recording(1, body={"temperature": 0.1})
    fork.turn(ask(max_tokens=5), range(1, 9), made_up)

    def refused(*_: object) -> list[bytes]:
        raise VerificationError("not for you", code="no-evidence")

    def proof(made: Recording) -> Any:
        return lambda session, old, new: prefix_path(made.log.tree.range, old, new)

    for number, (seen, now, proves, code) in enumerate(
        [
            (longer, told, proof(longer), None),
            (longer, told, refused, "no-evidence"),
            (longer, told, lambda *_: [bytes(32)], "no-evidence"),
            (fork, told, proof(longer), "no-evidence"),
            (fork, told, proof(fork), "two-histories"),
            (longer, other, proof(longer), "two-histories"),
        ]
    ):
        memory: Any = Memory(tmp_path / str(number), TRUST)
        client: Any = Provider(now)
        client.continuation = proves
        memory.head(check_evidence(seen.evidence(), TRUST).session.signed)
        if code is None:
            grow(memory, client, now)
            continue
        with pytest.raises(VerificationError) as caught:
            grow(memory, client, now)
        assert caught.value.code == code
        assert isinstance(caught.value, Contradiction) is (code == "two-histories")
        if isinstance(caught.value, Contradiction):
            assert caught.value.fraud is not None
            assert Fraud.parse(caught.value.fraud.encode()).verify(TRUST).code == code


def test_a_list_is_held_only_against_what_was_remembered_before_it_was_fetched(tmp_path: Path):
    """Two audits with one state: one ends with a newer head, or checkpoint, after the other fetched its list."""
    slow, fast = Memory(tmp_path, TRUST), Memory(tmp_path, TRUST)
    made, longer = recording(1), recording(1)
    longer.turn(ask(max_tokens=5), range(1, 9), made_up)
    older, newer = (check_evidence(each.evidence(), TRUST).session.signed for each in (made, longer))
    client: Any = Provider(made)
    slow.mark()
    early = client.checkpoint()
    fast.head(newer)
    client.size = 15
    assert check_log(fast, client) is not None
    slow.head(older)
    slow.check_listed(older)
    latest, now = slow.checkpoint(client.manifest(), early)
    assert (latest, now.size) == (None, 10)
    slow.mark()  # what is fetched from now on is later than all that
    with pytest.raises(Contradiction):
        slow.check_listed(older)
    with pytest.raises(VerificationError, match="shorter"):
        slow.checkpoint(client.manifest(), early)


def test_a_head_is_remembered_whatever_is_wrong_with_the_evidence_under_it(tmp_path: Path):
    """It was signed: a provider can't keep it from being held against the next one by spoiling what comes with it."""
    first, second = recording(1), recording(1, body={"temperature": 0.1})
    (turn,) = first.evidence().turns
    spoiled = replace(first.evidence(), turns=(replace(turn, request=b"{}"),))
    here = Auditor(MadeUpModel(), TRUST, tmp_path / "kept", memory=Memory(tmp_path / "state", TRUST))
    errors = []
    for made, evidence in ((first, spoiled), (second, second.evidence())):
        client: Any = SimpleNamespace(evidence=Mock(return_value=evidence.encode()))
        listed = Listed(made.session, made.log.size, 0, evidence.head)
        errors.append(fetch(here, client, Fetched(made.session, listed)).error)
    assert errors[0] is not None
    assert errors[0].code == "evidence-differs"
    assert isinstance(errors[1], Contradiction)
    assert errors[1].fraud is not None


def test_a_log_is_followed_by_consistency_proofs(tmp_path: Path):
    memory = Memory(tmp_path, TRUST)
    client: Any = Provider(recording())
    assert check_log(memory, client) is not None
    client.size = 15
    found = check_log(memory, client)
    assert found is not None
    assert found.checkpoint.size == 15
    client.entries[3] = b"rewritten"
    client.size = 18
    with pytest.raises(Contradiction) as caught:
        check_log(memory, client)
    assert caught.value.code == "log-forked"


def test_a_proof_that_nobody_signed_accuses_nobody(tmp_path: Path):
    """Somebody on the way spoils it: the log's own tiles decide, and without them nothing is decided."""

    def refused(*_: object) -> list[bytes]:
        raise VerificationError("no proof", code="unreachable")

    for number, proves in enumerate((lambda *_: [bytes(32)], refused)):
        memory = Memory(tmp_path / str(number), TRUST)
        client: Any = Provider(recording())
        assert check_log(memory, client) is not None
        client.proves, client.size = proves, 15
        found = check_log(memory, client)
        assert found is not None
        assert found.checkpoint.size == 15
        client.size = 18
        client.log_file = lambda path, most: b"spoilt"
        with pytest.raises(VerificationError) as caught:
            check_log(memory, client)
        assert caught.value.code == "no-evidence"
        assert not isinstance(caught.value, Contradiction)
    for name in ("manifest", "checkpoint"):
        client = Provider(recording())
        setattr(client, name, lambda: b"\xff")
        with pytest.raises(VerificationError) as caught:
            check_log(Memory(tmp_path / name, TRUST), client)
        assert caught.value.code == "unreachable"


def test_leaves_of_other_turns_do_not_pass_for_a_contradiction():
    made = liar()
    evidence = made.evidence(EvidenceKind.FULL)
    leaves = [records.parse(data) for data in made.leaves]
    turns = [leaf.seq for leaf in leaves if isinstance(leaf, records.Turn)]
    wrong = narrowed(evidence.opening, made.log.size, {turns[1], turns[0] + 4})
    with pytest.raises(MalformedError):
        Fraud(FraudKind.TOKEN, (evidence.manifest,), (evidence.head,), wrong).verify(TRUST)
