"""Who may do what with a session, over HTTP and with the commands: its owner, a receipt's holder, an auditor."""

from __future__ import annotations

import base64
import json
import logging
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.generation import QueueSink
from engine.sessions.sessions import readers
from tests.gguf_files import small, write
from tests.integration.serving import chunks, http
from tests.made_up_engine import MadeUpEngine, MadeUpRows
from verifiable import Exchange, Receipt
from verifiable.cli import main
from verifiable.errors import MalformedError
from verifiable.request.request import COMPLETION, parse_body
from verifiable.session.receipt import reader_capability
from verifiable.wire import encoding
from verifiable.wire.text import read_base64url
from verifier.commands import run

PROMPT = [1, 2, 3]
READS = ("receipt", "evidence", "evidence?kind=full", "proofs?positions=4", "manifest")


class Machine(MadeUpRows):
    """The auditor's copy of the model, where the command makes a process."""

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass
class Served:
    """A provider, and the session of a client that is its owner: `owner` and `reader` are its capabilities."""

    engine: MadeUpEngine
    data: Path
    url: str
    http: httpx.Client
    session: str = ""
    owner: str = ""

    @property
    def reader(self) -> str:
        return reader_capability(bytes.fromhex(self.owner)).hex()

    def ask(self, session: str | None = None, capability: str = "", stream: bool = False) -> httpx.Response:
        extra = {"nonce": "00" * 16} | ({} if session is None else {"session": session})
        body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "stream": stream, "verifiable": extra}
        return self.http.post(self.url + COMPLETION, json=body, headers=shows(capability))

    def read(self, what: str, **headers: str) -> httpx.Response:
        return self.http.get(f"{self.url}/v1/sessions/{self.session}/{what}", headers=headers)

    def erase(self, **headers: str) -> httpx.Response:
        return self.http.delete(f"{self.url}/v1/sessions/{self.session}", headers=headers)

    def owns(self, **headers: str) -> set[int]:
        """What comes of continuing and of erasing the session."""
        capability = headers.get("X-Verifiable-Capability", "")
        return {self.ask(self.session, capability).status_code, self.erase(**headers).status_code}

    def audit(self, target: str, *more: str) -> int:
        options = ["--model", "model.gguf", "--trust", str(self.engine.keys.public_file), *more]
        return main(["audit", target, *options, *([] if target == self.url else ["--provider", self.url])])


def shows(capability: str) -> dict[str, str]:
    return {"X-Verifiable-Capability": capability}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERIFIABLE_AUDITOR_KEY", raising=False)
    monkeypatch.setattr("engine.web.limits.RateLimit.take", lambda *_: None)
    write(tmp_path, small())
    engine = MadeUpEngine(tmp_path / "data")
    rows = MadeUpRows.of(engine)
    machine = Machine(words=rows.words, who=rows.who, prompt=rows.prompt)
    machine.probed = rows.probed
    monkeypatch.setattr(run, "Worker", lambda *_, **__: machine)
    with http(engine, []) as url, httpx.Client(timeout=60) as client:
        made = Served(engine, tmp_path / "data", url, client)
        answer = made.ask("new")
        extra = answer.json()["verifiable"]
        made.session, made.owner = extra["session"], extra["capability"]
        Path("answer.receipt").write_text(extra["receipt"])
        body = json.loads(answer.request.content)
        text = answer.json()["choices"][0]["text"]
        Exchange.of(body, path=COMPLETION, text=text, receipt=extra["receipt"]).save("answer.exchange")
        yield made
    engine.close()


@pytest.fixture
def key(served: Served, capsys: pytest.CaptureFixture[str]) -> str:
    """A key that the operator issued to an auditor."""
    assert main(["auditors", "add", "eve", "--data", str(served.data)]) == 0
    return capsys.readouterr().out.strip()


def revoke(served: Served) -> None:
    assert main(["auditors", "revoke", "eve", "--data", str(served.data)]) == 0


def spellings(capability: str) -> list[bytes]:
    """How a capability could stand in some file."""
    raw = bytes.fromhex(capability)
    in_base64 = [
        base64.b64encode(b"\0" * shift + raw)[-(-shift * 8 // 6) : (shift + 32) * 8 // 6] for shift in range(3)
    ]
    return [raw, repr(raw)[2:-1].encode(), capability.encode(), capability.upper().encode(), *in_base64]


def holds(data: bytes, *capabilities: str) -> bool:
    urlsafe = data.replace(b"-", b"+").replace(b"_", b"/")
    return any(each in data or each in urlsafe for name in capabilities for each in spellings(name))


def byte_strings(data: bytes) -> Iterator[bytes]:
    """Every byte string of 32 bytes in a file, at any depth."""
    todo: list[Any] = [encoding.decode(data)]
    while todo:
        value = todo.pop()
        if isinstance(value, dict | list):
            todo += value.values() if isinstance(value, dict) else value
        elif isinstance(value, encoding.Tagged):
            todo.append(value.value)
        elif isinstance(value, bytes) and len(value) == 32:
            yield value
        elif isinstance(value, bytes):
            try:
                todo.append(encoding.decode(value, tags=frozenset((18,))))
            except MalformedError:
                continue


# The owner.


def test_the_owner_reads_continues_and_erases(served: Served) -> None:
    assert {served.read(what, **shows(served.owner)).status_code for what in READS} == {200}
    for turn in (1, 2):
        extra = served.ask(served.session, served.owner).json()["verifiable"]
        assert (extra["session"], extra["turn"], extra["capability"]) == (served.session, turn, served.owner)
    assert served.erase(**shows(served.owner)).status_code == 204
    assert served.read("evidence", **shows(served.owner)).status_code == 410


def test_the_owners_capability_is_in_its_answers_alone(served: Served) -> None:
    """Not in the receipt, nor in the exchange that a client writes, nor in chunks before the last."""
    for path in ("answer.receipt", "answer.exchange"):
        data = Path(path).read_bytes()
        receipt = (
            Exchange.parse(data).receipt
            if path.endswith("exchange")
            else Receipt.parse(read_base64url(data.decode(), ""))
        )
        assert receipt is not None
        assert receipt.capability == bytes.fromhex(served.reader)
        assert not holds(data, served.owner)
        assert not holds(receipt.encode(), served.owner)
    streamed = list(chunks(served.ask("new", stream=True)))
    assert served.ask().headers["cache-control"] == "no-store"
    told = [event["verifiable"]["capability"] for event in streamed if event.get("verifiable")]
    assert len(told) == 1
    assert not any(holds(json.dumps(event).encode(), told[0]) for event in streamed if not event.get("verifiable"))
    alone = served.ask().json()["verifiable"]
    assert alone["capability"] is None
    row = served.engine.store.session(bytes.fromhex(alone["session"]))
    assert row is not None
    assert not holds(json.dumps(alone).encode(), row.capability.hex())
    for shown in (served.owner, served.reader):
        again = Receipt.parse(served.read("receipt", **shows(shown)).content)
        assert again.capability == bytes.fromhex(served.reader)


# Whoever is handed a receipt.


def test_a_receipt_reads_and_no_more(served: Served) -> None:
    headers = shows(served.reader)
    assert {served.read(what, **headers).status_code for what in READS} == {200}
    assert served.owns(**headers) == {404}
    stranger = served.ask("0" * 32, served.reader)
    assert served.ask(served.session, served.reader).text == stranger.text
    assert served.audit("answer.receipt") == 0
    assert served.ask(served.session, served.owner).status_code == 200
    assert served.erase(**headers).status_code == 404
    assert served.read("evidence", **headers).status_code == 200


@pytest.mark.parametrize("kept", ["answer.receipt", "answer.exchange"])
def test_a_receipt_without_capability_is_checked_and_opens_nothing(
    served: Served, key: str, kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trust = ("--trust", str(served.engine.keys.public_file))
    handed = f"handed-on{Path(kept).suffix}"
    assert main(["verify", kept, *trust, "--without-capability", handed]) == 0
    assert main(["verify", kept, *trust, "--without-capability", handed]) == 2  # what is there is not replaced
    assert "not there yet" in capsys.readouterr().err
    assert main(["verify", "--fraud", kept, *trust, "--without-capability", "x"]) == 2
    data = Path(handed).read_bytes()
    inner = Exchange.parse(data).receipt if kept.endswith("exchange") else Receipt.parse(data)
    assert inner is not None
    assert inner.capability is None
    assert not holds(data, served.owner, served.reader)
    assert not holds(inner.encode(), served.owner, served.reader)
    assert main(["verify", handed, *trust]) == 0
    capsys.readouterr()
    assert served.audit(handed) == 2
    assert "expected --auditor-key KEY" in capsys.readouterr().err
    assert served.audit(handed, "--auditor-key", key) == 0
    Path("folder").mkdir()
    Path(handed).rename(f"folder/{handed}")
    assert served.audit(served.url, "--receipts", "folder") == 2
    assert "expected --auditor-key KEY" in capsys.readouterr().err
    assert served.audit(served.url, "--receipts", "folder", "--auditor-key", key) == 0


def test_a_receipts_capability_opens_its_own_session_alone(served: Served) -> None:
    other = served.ask("new").json()["verifiable"]
    for capability in (served.owner, served.reader):
        assert served.ask(other["session"], capability).status_code == 404
        url = f"{served.url}/v1/sessions/{other['session']}"
        assert served.http.get(f"{url}/evidence", headers=shows(capability)).status_code == 404
        assert served.http.delete(url, headers=shows(capability)).status_code == 404
    assert readers(None, bytes(32)) is readers(None, reader_capability(bytes(32))) is None  # no session, no right


# An auditor.


def test_an_auditor_reads_while_its_key_is_good_and_never_owns(served: Served, key: str) -> None:
    """With every 32 bytes that it was ever given, and with what follows from each of them."""
    by_key = {"Authorization": f"Bearer {key}"}
    got = {what: served.read(what, **by_key) for what in READS}
    assert {each.status_code for each in got.values()} == {200}
    assert not any(holds(each.content, served.owner, served.reader) for each in got.values())
    assert Receipt.parse(got["receipt"].content).capability is None
    seen = {raw for what in READS[:4] for raw in byte_strings(got[what].content)}
    assert len(seen) > 20
    assert served.owns(**by_key) == {404}
    revoke(served)
    assert {served.read(what, **by_key).status_code for what in READS} == {404}
    for raw in seen:
        for tried in (raw, reader_capability(raw)):
            headers = shows(tried.hex()) | by_key
            assert served.owns(**headers) == {404}
            assert served.read("receipt", **headers).status_code == 404
    assert served.ask(served.session, served.owner).status_code == 200
    assert served.erase(**shows(served.owner)).status_code == 204


def test_an_auditors_command_ends_with_its_key(served: Served, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What it has saved it has; nothing in it opens more."""
    options = ("--auditor-key", key, "--save", "kept")
    assert served.audit(served.url, *options, "--html", "a.html", "--sign", "me.key", "--state", "state") == 0
    saved = list(Path("kept").iterdir())
    assert saved
    assert {stat.S_IMODE(path.stat().st_mode) for path in saved} == {0o600}  # people's prompts
    revoke(served)
    assert served.ask(served.session, served.owner).status_code == 200
    capsys.readouterr()
    assert served.audit(served.url, *options, "--json") == 3
    facts = json.loads(capsys.readouterr().out)
    assert {verdict["code"] for verdict in facts["verdicts"]} == {"no-evidence"}
    assert set(Path("kept").iterdir()) == set(saved)


# Everything that is written.


def test_nothing_that_is_written_holds_a_capability(
    served: Served, key: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Logs, metrics, pages, errors, reports, saved evidence, an auditor's memory; the receipt itself alone does."""
    caplog.set_level(logging.DEBUG)
    pages = ("/", "/metrics", "/v1/sessions", "/v1/log", "/openapi.json")
    said = [served.http.get(served.url + path).raise_for_status().content for path in pages]
    receipt = Path("answer.receipt").read_text()
    said.append(served.http.post(served.url + "/lookup", data={"what": receipt}).content)
    said.append(served.http.post(served.url + "/lookup", data={"what": receipt[:-9]}).content)
    for capability in (served.owner, served.reader):
        said += [served.read(what, **shows(capability[:-1])).content for what in READS]
        said += [served.read(what, **shows(capability)).content for what in READS[1:]]
        said.append(served.ask(served.session, capability[:-2]).content)
    said.append(served.ask(served.session, served.reader).content)
    assert served.ask(served.session, served.owner).status_code == 200
    files = ("--save", "kept", "--html", "a.html", "--state", "state", "--sign", "me.key")
    for number, target in enumerate(("answer.receipt", "answer.exchange", served.url)):
        more = (*files, "--auditor-key", key, "--signed-report", f"{number}.report")
        assert served.audit(target, *more) == 0
        assert served.audit(target, *more, "--json") == 0
    trust = ("--trust", str(served.engine.keys.public_file))
    for target in ("answer.receipt", "answer.exchange"):
        assert main(["verify", target, *trust]) == main(["verify", target, *trust, "--json"]) == 0
    damaged = bytearray(read_base64url(receipt, ""))
    damaged[-40] ^= 1
    Path("damaged").write_bytes(damaged)
    assert main(["verify", "damaged", *trust]) == 2
    out = capsys.readouterr()
    written = [path for path in Path().rglob("*") if path.is_file() and not path.is_relative_to("data")]
    assert {path.name for path in written} > {"a.html", "0.report", "2.report"}
    given = {"answer.receipt", "answer.exchange", "damaged"}
    said += [path.read_bytes() for path in written if path.name not in given]
    said += [out.out.encode(), out.err.encode(), caplog.text.encode(), repr(served.engine.sessions._live).encode()]
    said.append(repr(Receipt.parse(read_base64url(receipt, ""))).encode())
    on: dict[str, Any] = {"verifiable": {"session": served.session}, "max_tokens": 2}
    said.append(repr(served.engine.complete(PROMPT, **on, capability=bytes.fromhex(served.owner))).encode())
    request = parse_body(COMPLETION, json.dumps({"prompt": PROMPT, **on}).encode())
    said.append(repr(served.engine.submit(request, QueueSink(), bytes.fromhex(served.owner))).encode())
    assert all(f'"event":"{each}"' in caplog.text for each in ("request", "answer"))
    assert [text[:80] for text in said if holds(text, served.owner, served.reader)] == []
    assert holds(Path("answer.receipt").read_bytes(), served.reader)  # so that this test can fail
