"""Keys that are exchanged, stolen and revoked, over HTTP and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import small, write
from tests.made_up_model import PROMPT, MadeUpProcess
from tests.sessions import PROVIDER, SESSION, TIME, Recording, ask, made_up, manifest
from tests.simulator import KEY, LOG, LOGGED, Log, Provider, honest, other_model, serve
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.checking.verdict import Status
from verifiable.cli import main
from verifiable.errors import PolicyError
from verifiable.manifest.manifest import Manifest
from verifiable.manifest.statements import KeysFile, Revocation, Role, Succession
from verifiable.sampling.logits import Entries
from verifiable.wire.keys import PrivateKey
from verifier.commands import run
from verifier.report.signed import sign_report, verify_report
from verifier.report.statement import statement_of

NEXT, MALLORY = PrivateKey("acme-2027", b"n" * 32), PrivateKey("mallory", b"m" * 32)
AUDITOR = PrivateKey("alice", b"a" * 32)
NEXT_SESSION = PrivateKey("acme/session", b"t" * 32)
NEXT_LOG, MALLORY_LOG = PrivateKey("acme/log", b"L" * 32), PrivateKey("acme/log", b"M" * 32)
SUCCEEDS = Succession.sign(PROVIDER, NEXT, Role.PROVIDER, TIME + 1000)
FORKED = Succession.sign(PROVIDER, MALLORY, Role.PROVIDER, TIME + 1000)
LOG_SUCCEEDS = Succession.sign(LOG, NEXT_LOG, Role.LOG, TIME + 1000)
NEWER = manifest(session_keys=(NEXT_SESSION.public,), log=NEXT_LOG.public)
DAY = 86_400_000
NAMES = f"{PROVIDER.public.label}, now {NEXT.public.label}"

Told = tuple[int, dict[str, Any]]
Audit = Callable[..., Told]


def newer(number: int, row: Callable[[Sequence[int]], Entries] = made_up, stated: Manifest = NEWER) -> Recording:
    """A session after the exchange of all keys."""
    made = Recording(stated, bytes([number]) * 16, capability=bytes([number]) * 32)
    made.provider, made.session_key, made.ended = NEXT, NEXT_SESSION, TIME + 9000
    made.turn(ask(max_tokens=5), PROMPT, row)
    made.close()
    return made


def exchanged(*recordings: Recording, statements: Sequence[bytes] | None = (SUCCEEDS, LOG_SUCCEEDS)) -> Provider:
    """A provider after the exchange of its own and its log's key."""
    provider = Provider(recordings, Log([made.head() for made in recordings]))
    provider.log.keys = [LOG, NEXT_LOG]
    provider.statements, provider.stated = statements, NEWER.sign(NEXT)
    return provider


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands run here, with a made-up model in the place of a process."""
    monkeypatch.setattr(run, "Worker", MadeUpProcess)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, small())
    (tmp_path / "acme.pub").write_text(PROVIDER.public.vkey() + "\n")
    return tmp_path


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str]) -> Audit:
    def audited(provider: Provider, *options: str, of: str | None = None) -> Told:
        known = ["--model", "model.gguf", "--trust", "acme.pub", "--auditor-key", KEY, "--json"]
        with serve(provider) as url:
            target = [url] if of is None else [of, "--provider", url]
            code = main(["audit", *target, *known, *options])
        out, err = capsys.readouterr()
        return code, json.loads(out[out.index("{\n") :]) if "{\n" in out else {"error": err}

    return audited


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Audit:
    def verified(*arguments: str) -> Told:
        code = main(["verify", *arguments, "--trust", "acme.pub", "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out)

    return verified


def kept(name: str, *statements: bytes) -> str:
    Path(name).write_bytes(KeysFile(statements).encode())
    return name


def revoked(key: PrivateKey, time: int, role: Role = Role.SESSION, by: PrivateKey = PROVIDER) -> bytes:
    return Revocation(role, key.public, time, "the machine was stolen").sign(by)


def _served(keys: bytes, path: str, body: bytes) -> bytes:
    return keys if path == "/v1/keys" else body


def codes(facts: dict[str, Any]) -> list[str | None]:
    return [each.get("code") for each in facts["verdicts"]]


def notes(facts: dict[str, Any]) -> set[str]:
    return {each["id"] for each in facts["not_shown"]}


def test_an_audit_follows_the_providers_key_by_what_it_serves(audit: Audit) -> None:
    code, facts = audit(exchanged(honest(1, stated=manifest(log=LOG.public)), newer(2)))
    assert (code, facts["status"], facts["followed"]) == (0, "verified-exact", [NEXT.public.vkey()])
    assert facts["trusted"] == [PROVIDER.public.vkey()]
    assert "other-signer" not in notes(facts)
    assert "log-not-shown" not in notes(facts)
    said = [check["detail"] for each in facts["verdicts"] for check in each["checks"] if check["name"] == "Keys"]
    assert said == [f"the key that you trust leads to the one that signed: {NAMES}"]
    assert facts["providers"] == [[PROVIDER.public.vkey(), NEXT.public.vkey()]]
    assert {each["about"] for each in facts["verdicts"]} == {PROVIDER.public.vkey()}
    report = verify_report(sign_report(facts, AUDITOR, TIME), [AUDITOR.public])
    old, new = (statement_of(report, key.public) for key in (PROVIDER, NEXT))
    assert (old, old.sessions, old.status) == (new, 2, Status.EXACT)
    with pytest.raises(PolicyError, match="no session of mallory"):
        statement_of(report, MALLORY.public)


@pytest.mark.parametrize("statements", [None, (), (SUCCEEDS, FORKED), (LOG_SUCCEEDS,)])
def test_a_key_that_the_chain_does_not_reach_accuses_nobody(
    audit: Audit, verify: Audit, statements: Sequence[bytes] | None
) -> None:
    made = newer(2)
    code, facts = audit(exchanged(made, statements=statements))
    assert code == 2
    assert "names no key that signed" in facts["error"]
    assert "GET /v1/keys" in facts["error"]
    assert ("two successors" in facts["error"]) is (statements == (SUCCEEDS, FORKED))
    Path("a.receipt").write_bytes(made.receipt().encode())
    code, facts = verify("a.receipt", "--keys", kept("acme.keys", *statements or ()))
    assert (code, facts["code"]) == (3, "untrusted-key")


def test_a_keys_file_that_is_none_is_no_chain_and_no_finding(audit: Audit) -> None:
    for body in (b"junk", KeysFile((b"junk", SUCCEEDS[:-1])).encode()):
        provider = exchanged(newer(2))
        provider.change = partial(_served, body)
        code, facts = audit(provider)
        assert code == 2
        assert "Left out" in facts["error"]
        code, facts = audit(provider, "--keys", kept("acme.keys", SUCCEEDS, LOG_SUCCEEDS))
        assert (code, facts["status"]) == (0, "verified-exact")
        assert "--keys acme.keys" in facts["command"]


def test_old_and_new_receipts_verify_by_the_old_key_alone(verify: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    keys = kept("acme.keys", SUCCEEDS, LOG_SUCCEEDS)
    for name, made in (("old", honest(1)), ("new", newer(2))):
        Path(f"{name}.receipt").write_bytes(made.receipt().encode())
        code, _ = verify(f"{name}.receipt", "--keys", keys)
        assert code == 0
    assert main(["verify", "new.receipt", "--keys", keys, "--trust", "acme.pub"]) == 0
    assert f"Signed by {NAMES}" in capsys.readouterr().out


def test_what_is_signed_with_a_stolen_session_key_is_no_pass(audit: Audit, verify: Audit) -> None:
    """The thief's own machine runs the model well: everything but the key holds."""
    made = honest(1)
    Path("a.receipt").write_bytes(made.receipt().encode())
    for time, status, code in ((TIME + 5000, 3, "key-revoked"), (TIME + 5001, 0, None)):
        provider = Provider([made])
        provider.statements = [revoked(SESSION, time)]
        found, facts = audit(provider)
        assert (found, codes(facts)) == (status, [code])
        assert facts["verdicts"][0]["tokens_checked"] == 5
        assert ("key-revoked-later" in notes(facts)) is (code is None)
        found, facts = verify("a.receipt", "--keys", kept("acme.keys", *provider.statements))
        assert (found, facts.get("code")) == (status, code)


def test_a_stolen_provider_key_counts_no_more_once_it_is_revoked(verify: Audit) -> None:
    """Mallory has the old key, names session keys of her own, and signs today; or dates it back, which is said."""
    hers = PrivateKey("acme/session", b"h" * 32)
    for ended, status in ((TIME + 9000, 3), (TIME + 3000, 0)):
        made = Recording(manifest(session_keys=(hers.public,)), session_key=hers, ended=ended)
        made.turn(ask(), PROMPT)
        Path("a.receipt").write_bytes(made.receipt().encode())
        keys = kept("acme.keys", SUCCEEDS, revoked(PROVIDER, TIME + 4000, Role.PROVIDER, NEXT))
        code, facts = verify("a.receipt", "--keys", keys)
        assert (code, facts.get("code")) == (status, "key-revoked" if status else None)
        assert ("key-revoked-later" in notes(facts)) is (status == 0)


def test_a_stolen_key_takes_no_revocation_back(verify: Audit, here: Path) -> None:
    """With a second successor Mallory ends the chain; what the first one revoked stays revoked."""
    hers = PrivateKey("acme/session", b"h" * 32)
    made = Recording(manifest(session_keys=(hers.public,)), session_key=hers, ended=TIME + 9000)
    made.turn(ask(), PROMPT)
    Path("a.receipt").write_bytes(made.receipt().encode())
    Path("next.pub").write_text(NEXT.public.vkey())
    for role, what in ((Role.PROVIDER, PROVIDER), (Role.SESSION, hers)):
        honest_keys = kept("acme.keys", SUCCEEDS, revoked(what, TIME + 4000, role, NEXT))
        for date in (TIME, TIME + 4001):  # before, or after the revocation
            thief = kept("thief.keys", Succession.sign(PROVIDER, MALLORY, Role.PROVIDER, date))
            for more in ((), ("--trust", "next.pub")):
                code, facts = verify("a.receipt", "--keys", honest_keys, "--keys", thief, *more)
                assert (code, facts["code"]) == (3, "key-revoked")


def test_a_key_that_revoked_itself_names_no_successor_whatever_the_date(verify: Audit) -> None:
    made = newer(1)
    made.provider = MALLORY
    Path("a.receipt").write_bytes(made.receipt().encode())
    keys = kept("acme.keys", FORKED, revoked(PROVIDER, TIME + 1001, Role.PROVIDER, PROVIDER))
    code, facts = verify("a.receipt", "--keys", keys)
    assert (code, facts["code"]) == (3, "untrusted-key")


def test_an_old_keys_file_that_is_shown_again_hides_a_revocation(verify: Audit) -> None:
    """Nobody can show that there is no newer statement: what is verified rests on the keys file at hand."""
    Path("a.receipt").write_bytes(honest(1).receipt().encode())
    old, new = kept("old.keys"), kept("new.keys", revoked(SESSION, TIME))
    assert [verify("a.receipt", "--keys", name)[0] for name in (old, new)] == [0, 3]
    assert verify("a.receipt", "--keys", old, "--keys", new)[0] == 3


def test_a_provider_does_not_revoke_its_way_out(audit: Audit, verify: Audit) -> None:
    provider = Provider([honest(1, other_model)])
    provider.statements = [revoked(SESSION, 0), revoked(PROVIDER, 0, Role.PROVIDER)]
    code, facts = audit(provider)
    assert (code, codes(facts)) == (1, ["logits-differ"])
    said = [check["passed"] for check in facts["verdicts"][0]["checks"] if check["name"] == "Keys"]
    assert said == [None, None]


def test_what_was_seen_under_the_old_key_contradicts_what_is_shown_under_the_new_one(
    audit: Audit, verify: Audit, here: Path
) -> None:
    unlogged = replace(NEWER, log=None)  # so that only the auditor's memory can tell
    first, second = newer(1, stated=unlogged), newer(1, stated=replace(unlogged, valid_to=TIME + 999_999))
    first.provider = PROVIDER
    assert audit(Provider([first]), "--state", "state")[0] == 0
    provider = Provider([second])
    provider.statements = [SUCCEEDS]
    code, facts = audit(provider, "--state", "state")
    assert (code, codes(facts)) == (1, ["two-histories"])
    (file,) = (path for path in facts["saved"] if path.endswith(".fraud"))
    keys = kept("acme.keys", SUCCEEDS, revoked(NEXT_SESSION, 0, by=NEXT))
    code, facts = verify("--fraud", file, "--keys", keys)
    assert (code, facts["code"]) == (1, "two-histories")
    assert "was revoked: the machine was stolen" in facts["hint"]
    assert verify("--fraud", file)[0] == 3


def test_revoking_the_logs_key_hides_nothing_that_the_log_shows(audit: Audit, here: Path) -> None:
    """A head that it kept out, and entries that it swapped, are found as they were before."""
    kept_out, other = honest(1, stated=LOGGED), honest(2, stated=LOGGED)
    renewed = replace(LOGGED, valid_to=TIME + 9 * DAY)
    later = honest(3, stated=renewed)
    later.ended = TIME + 4 * DAY
    provider = Provider([kept_out, other, later], Log([other.head(), later.head()]))
    provider.stated = renewed.sign(PROVIDER)
    by_another = Revocation(Role.LOG, LOG.public, TIME, "x").sign(MALLORY)
    for statements in ((), (revoked(LOG, TIME, Role.LOG),)):
        provider.statements = statements
        code, facts = audit(provider)
        assert (code, "missing-from-log" in codes(facts)) == (1, True)
        assert any(path.endswith("-log.fraud") for path in facts["saved"])
        assert ("the log's key was revoked" in json.dumps(facts["not_shown"])) is bool(statements)
    provider = Provider([kept_out, other], Log([kept_out.head(), other.head()]))
    assert audit(provider, "--state", "state")[0] == 0
    provider.log.entries = [other.head(), kept_out.head()]
    provider.statements = (revoked(LOG, TIME, Role.LOG),)
    code, facts = audit(provider, "--state", "state")
    assert (code, codes(facts)) == (1, ["two-histories"])
    assert any(path.endswith(".fraud") for path in facts["saved"])
    # The revocation of another provider's key, trusted as well, is none.
    Path("mallory.pub").write_text(MALLORY.public.vkey())
    provider = Provider([kept_out], Log([kept_out.head()]))
    code, facts = audit(provider, "--trust", "mallory.pub", "--keys", kept("mallory.keys", by_another))
    assert (code, "log-not-shown" in notes(facts)) == (0, False)


def test_another_log_without_a_succession_is_no_continuation(audit: Audit) -> None:
    """The provider names the key of another log, of the same name, in which two sessions are not."""
    first, second = honest(1, stated=LOGGED), honest(2, stated=LOGGED)
    assert audit(Provider([first, second], Log([first.head(), second.head()])), "--state", "state")[0] == 0
    renamed = replace(LOGGED, log=NEXT_LOG.public)
    third = honest(3, stated=renamed)
    provider = Provider([third], Log([third.head()]))
    provider.log.keys, provider.stated = [NEXT_LOG], renamed.sign(PROVIDER)
    code, facts = audit(provider, "--state", "state")
    assert (code, codes(facts)) == (3, ["no-evidence"])
    assert "names another log than it did before" in json.dumps(facts)
    provider.statements = [LOG_SUCCEEDS]  # the same log, and it is shorter than it was
    code, facts = audit(provider, "--state", "state")
    assert (code, codes(facts)) == (3, ["no-evidence"])
    assert "shorter than it was" in json.dumps(facts)


def test_one_successor_more_takes_no_conviction_back(verify: Audit) -> None:
    one, two = honest(5, stated=manifest(log=LOG.public)), newer(5, lambda ids: made_up([*ids, 3]))
    made = Fraud(FraudKind.TWO_HEADS, (one.manifest.sign(PROVIDER), NEWER.sign(NEXT)), (one.head(), two.head()))
    Path("heads.fraud").write_bytes(made.encode())
    Path("next.pub").write_text(NEXT.public.vkey())
    for statements in ((SUCCEEDS,), (SUCCEEDS, FORKED), (SUCCEEDS, revoked(PROVIDER, 0, Role.PROVIDER))):
        for more in ((), ("--trust", "next.pub")):
            code, facts = verify("--fraud", "heads.fraud", "--keys", kept("acme.keys", *statements), *more)
            assert (code, facts["code"]) == (1, "two-histories")
    assert verify("--fraud", "heads.fraud", "--trust", "next.pub")[0] == 3  # nothing says that they are one


def test_two_successors_of_the_logs_key_hide_no_fork(audit: Audit) -> None:
    first, second = honest(1, stated=LOGGED), honest(2, stated=LOGGED)
    provider = Provider([first, second], Log([first.head(), second.head()]))
    provider.log.keys, provider.statements = [LOG, NEXT_LOG], (LOG_SUCCEEDS,)
    assert audit(provider, "--state", "state")[0] == 0
    provider.log.entries, provider.log.keys = [second.head(), first.head()], [NEXT_LOG]
    provider.statements = (LOG_SUCCEEDS, Succession.sign(LOG, MALLORY_LOG, Role.LOG, TIME))
    code, facts = audit(provider, "--state", "state")
    assert (code, codes(facts)) == (1, ["two-histories"])


def test_two_histories_across_an_exchange_of_keys_are_two_histories(audit: Audit, verify: Audit) -> None:
    """One is longer than the other, so that only the larger one's tree tells."""
    old = honest(7, stated=manifest(log=LOG.public))
    longer = Recording(NEWER, bytes([7]) * 16, capability=bytes([7]) * 32)
    longer.provider, longer.session_key, longer.ended = NEXT, NEXT_SESSION, TIME + 9000
    longer.turn(ask(max_tokens=5), PROMPT, lambda ids: made_up([*ids, 3]))
    assert audit(Provider([old], Log([old.head()])), "--state", "state")[0] == 0
    longer.turn(ask(max_tokens=5), PROMPT)
    longer.close()
    code, facts = audit(exchanged(longer), "--state", "state")
    assert (code, codes(facts)) == (1, ["two-histories"])
    (file,) = (path for path in facts["saved"] if path.endswith(".fraud"))
    code, facts = verify("--fraud", file, "--keys", kept("acme.keys", SUCCEEDS, LOG_SUCCEEDS))
    assert (code, facts["code"]) == (1, "two-histories")


def test_a_revocation_that_stands_in_the_log_counts(audit: Audit) -> None:
    """Though nobody shows it: the keys file is another's answer, or an old one."""
    made = honest(1, stated=LOGGED)
    provider = Provider([made], Log([revoked(SESSION, TIME), made.head()]))
    provider.statements = ()
    code, facts = audit(provider)
    assert (code, codes(facts)) == (3, ["key-revoked"])


def test_a_monitor_goes_on_across_an_exchange_of_the_logs_key(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [bytes([at]) for at in range(20)]
    provider = Provider([], Log(entries, size=5))

    def look(keys: Sequence[PrivateKey], size: int, *statements: bytes) -> tuple[int, str]:
        provider.log.keys, provider.log.size, provider.statements = list(keys), size, statements
        with serve(provider) as url:
            code = main(["log", "monitor", f"{url}/log", "--trust", LOG.public.vkey(), "--state", "state", "--once"])
        return code, "".join(capsys.readouterr())

    assert look([LOG], 5)[0] == 0
    assert look([LOG, NEXT_LOG], 7)[0] == 0  # both sign: who knows the old key alone goes on
    code, said = look([NEXT_LOG], 9)
    assert (code, "not signed by a key that you trust" in said) == (3, True)
    other = Succession.sign(LOG, PrivateKey("acme/log", b"z" * 32), Role.LOG, TIME)
    code, said = look([NEXT_LOG], 10, LOG_SUCCEEDS)
    assert (code, "10 entries, consistent with the 7 seen before" in said) == (0, True)
    assert look([NEXT_LOG], 11)[0] == 0  # it remembers the succession
    provider.log.entries[3] = b"rewritten"
    code, said = look([NEXT_LOG], 11)
    assert (code, "two roots for one size" in said) == (1, True)
    (file,) = here.glob("state/fork-*.json")
    arguments = ["verify", "--fork", str(file), "--trust", LOG.public.vkey()]
    assert main(arguments) == 3
    assert main([*arguments, "--keys", kept("acme.keys", LOG_SUCCEEDS)]) == 1
    capsys.readouterr()
    assert look([PrivateKey("acme/log", b"z" * 32)], 12, LOG_SUCCEEDS, other)[0] == 3  # two successors


def test_a_log_whose_key_was_revoked_is_not_read_by_it(audit: Audit) -> None:
    made = honest(1, stated=manifest(log=LOG.public))
    provider = Provider([made], Log([made.head()]))
    provider.statements = [revoked(LOG, TIME, Role.LOG)]
    code, facts = audit(provider)
    assert (code, codes(facts)) == (0, [None])
    assert "the log's key was revoked: the machine was stolen" in next(
        each["what"] for each in facts["not_shown"] if each["id"] == "log-not-shown"
    )
    provider.statements = [revoked(LOG, TIME + 2000, Role.LOG), LOG_SUCCEEDS]
    provider.log.keys = [NEXT_LOG]
    code, facts = audit(provider)
    assert (code, "log-not-shown" in notes(facts)) == (0, False)


def test_keys_show_tells_the_chain_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    provider = exchanged(newer(1), statements=[SUCCEEDS, revoked(SESSION, TIME, by=NEXT), b"junk"])
    with serve(provider) as url:
        assert main(["keys", "show", url, "--trust", "acme.pub"]) == 0
        shown = capsys.readouterr().out
        assert main(["keys", "show", kept("k", *provider.statements or ()), "--trust", "acme.pub"]) == 0
    assert capsys.readouterr().out == shown
    for line in (
        f"You trust {PROVIDER.public.label}",
        f"provider key {PROVIDER.public.label} is followed by {NEXT.public.label}",
        f"session key {SESSION.public.label} is revoked by {NEXT.public.label}, where its manifests name it",
        "left out: statement 3",
        f"Manifests count by: {PROVIDER.public.label}, {NEXT.public.label}",
    ):
        assert line in shown
    assert main(["keys", "show", "k", "--trust", "acme.pub", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [each["trusted_by"] for each in facts["keys"]] == [PROVIDER.public.vkey()] * 2
    assert facts["revocations"][0]["reason"] == "the machine was stolen"
    assert main(["keys", "show", "acme.pub", "--trust", "acme.pub"]) == 2
    with serve(Provider([honest(1)])) as url:
        assert main(["keys", "show", url, "--trust", "acme.pub"]) == 3
