"""docs/verify.html in a real browser: it agrees with Python on every vector, and says what it finds in words."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from spec.browser.build import PAGE
from spec.generate.run import run
from spec.generate.world import (
    HOUR,
    LOG_KEY,
    MANIFEST,
    NEW,
    OPENED,
    OTHER,
    PROVIDER,
    SESSION_KEY,
    WITNESSES,
    Story,
    asked,
    going_on,
)
from tests.integration import lies
from tests.integration.chromium import Page, browse, find
from tests.needs import missing_program
from tests.vector_files import FILES, same
from verifiable.checking.caveats import CAVEATS
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.manifest.manifest import AdapterFile, Rope
from verifiable.manifest.statements import KeysFile, Revocation, Role, Succession
from verifiable.request.exchange import Exchange
from verifiable.session.evidence import Kind
from verifiable.session.records import Finish
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import cosign, witness_key
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PrivateKey
from verifier.monitor.fork import fork_file

FIRST = Story.open("browser").turn(asked(max_tokens=20, verifiable=NEW), 12)
STORY = FIRST.turn(asked(None, temperature=0.7, verifiable=going_on("browser")), 5)
KEY = PROVIDER.public.vkey()


def kept() -> Exchange:
    """What the client of the story's first turn wrote."""
    return Exchange(STORY.requests[0], STORY.texts[0], STORY.receipt(0), OPENED - 50, OPENED + 4000)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the page is served, on this machine only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(PAGE.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{PAGE.name}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    program = find()
    if program is None:
        missing_program("no Chromium: install the system package chromium")
    with browse(program) as page:
        yield page


@pytest.fixture
def page(browser: Page, url: str) -> Page:
    """The page, freshly loaded, on a desk's screen."""
    browser.device(1000, 800)
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(url)
    return browser


def outcomes(page: Page, operation: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    file = json.dumps({"operation": operation, "cases": cases})
    found: list[dict[str, Any]] = page.evaluate(f"verifiableInference.runVectors({file})")
    return found


@pytest.mark.parametrize("name", FILES)
def test_it_agrees_with_python_on_every_vector(page: Page, name: str) -> None:
    cases = FILES[name]["cases"]
    found = outcomes(page, name, cases)
    assert [result["name"] for result in found] == [case["name"] for case in cases]
    wrong = [
        f"{case['name']}: the page {result['outcome']}, Python {case['expected']}"
        for case, result in zip(cases, found, strict=True)
        if not (result["agrees"] and agree(result["outcome"], case["expected"]))
    ]
    assert not wrong, "\n".join(wrong)


def agree(theirs: Any, ours: Any) -> bool:
    """As `same`, where JavaScript does not tell 1 from 1.0."""
    return same(json.loads(json.dumps(theirs), parse_int=float), json.loads(json.dumps(ours), parse_int=float))


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The data with a few bytes changed, dropped, doubled or inserted."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.choice((0, 1, 0x18, 0x40, 0x60, 0x80, 0xA0, 0xF6, 0xF9, 0xFF))
            case 2:
                del changed[at : at + chance.randrange(1, 4)]
            case 3:
                changed[at:at] = changed[at : at + chance.randrange(1, 9)]
            case _:
                changed[at:at] = chance.randbytes(chance.randrange(1, 3))
    return bytes(changed)


BINARY = {"cbor": 1500, "leaf": 800, "manifest": 300, "head": 300, "packed": 500, "envelope": 100}
TEXT = {"request": 800, "body": 800, "exchange": 500, "checkpoint": 100, "tlog-proof": 100}
PIECES = {"delivery": 800}


@pytest.mark.parametrize(("name", "count"), [*BINARY.items(), *TEXT.items(), *PIECES.items()])
def test_it_agrees_with_python_on_damaged_input(page: Page, name: str, count: int) -> None:
    """Beyond the vectors: whatever damage makes of them, both read the same or refuse it with the same code."""
    chance = random.Random(f"damage to {name}")
    cases = []
    for number in range(count):
        case = {key: value for key, value in chance.choice(FILES[name]["cases"]).items() if key != "expected"}
        case["name"] = str(number)
        if "pieces" in case:
            case["pieces"] = [mutated(bytes.fromhex(piece), chance).hex() for piece in case["pieces"]]
        elif "input" in case:
            case["input"] = mutated(bytes.fromhex(case["input"]), chance).hex()
        else:
            case["text"] = mutated(case["text"].encode(), chance).decode("utf-8", "replace")
        cases.append({**case, "expected": run(name, case)})
    found = outcomes(page, name, cases)
    wrong = [
        f"{case}: the page {result['outcome']}"
        for case, result in zip(cases, found, strict=True)
        if not agree(result["outcome"], case["expected"])
    ]
    assert not wrong, "\n".join(wrong[:5])
    assert any("ok" in case["expected"] for case in cases) or name in ("envelope", "checkpoint", "tlog-proof", "head")


def test_it_agrees_with_python_on_providers_that_lie(page: Page) -> None:
    """Signed nonsense: the same code from both, whatever was changed, swapped, cut or drawn otherwise."""
    made = lies.cases(400, random.Random("lies"))
    expected = {(operation, case["name"]): run(operation, case) for operation, case in made}
    assert len({outcome.get("error") for outcome in expected.values()}) > 8
    for operation in ("receipt", "evidence"):
        cases = [{**case, "expected": expected[operation, case["name"]]} for kind, case in made if kind == operation]
        for case, result in zip(cases, outcomes(page, operation, cases), strict=True):
            assert agree(result["outcome"], case["expected"]), case


def test_the_browsers_own_cryptography_agrees(page: Page) -> None:
    """WebCrypto accepts what our Ed25519 accepts; on what we refuse browsers differ, so that is not asked."""
    good = [case for case in FILES["signature"]["cases"] if "ok" in case["expected"]]
    assert good
    call = """(async (cases) => verifiableInference.crossCheck(cases.map((item) => ({
        key: verifiableInference.fromHex(item.key),
        message: verifiableInference.fromHex(item.message),
        signature: verifiableInference.fromHex(item.signature),
    }))))"""
    assert page.evaluate(f"{call}({json.dumps(good)})") == "agrees"
    wrong = [{**good[0], "message": good[0]["message"] + "00"}]
    assert page.evaluate(f"{call}({json.dumps(wrong)})") == "differs"


def give(
    page: Page,
    files: dict[str, bytes],
    trusted: str = KEY,
    answer: str = "",
    witnesses: tuple[str, ...] = (),
    quorum: str = "",
) -> str:
    """Choose files, fill in the form, press the button; the result's text."""
    seen = json.dumps("\n".join(witnesses)), json.dumps(quorum)
    items = json.dumps({name: base64.b64encode(data).decode() for name, data in files.items()})
    return str(
        page.evaluate(
            f"""(async (files, trusted, answer, witnesses, quorum) => {{
            const transfer = new DataTransfer();
            for (const [name, data] of Object.entries(files)) {{
                transfer.items.add(new File([verifiableInference.fromBase64(data)], name));
            }}
            const input = document.getElementById("files");
            const frame = () => new Promise(requestAnimationFrame);
            const chosen = () => document.querySelectorAll("#chosen li").length;
            if (transfer.files.length) {{
                input.files = transfer.files;
                input.dispatchEvent(new Event("change"));
            }}
            while (chosen() < transfer.files.length) await frame();
            document.activeElement.blur();
            document.getElementById("trusted").value = trusted;
            document.getElementById("answer").value = answer;
            document.getElementById("witnesses").value = witnesses;
            document.getElementById("quorum").value = quorum;
            document.querySelector("[type=submit]").click();
            while (document.activeElement.id !== "result") await frame();
            return document.getElementById("result").innerText;
        }})({items}, {json.dumps(trusted)}, {json.dumps(answer)}, {", ".join(seen)})"""
        )
    )


def test_a_receipt_with_its_evidence_and_text_holds(page: Page) -> None:
    files = {"answer.receipt": STORY.receipt(1).encode(), "all.evidence": STORY.evidence(Kind.FULL, [0, 1]).encode()}
    text = give(page, files, answer=STORY.texts[1])
    assert text.startswith("✓ It holds")
    assert "17 tokens follow from their records" in text
    assert "✗" not in text
    assert "Your text is the text that was committed" in text
    assert "Your browser’s own cryptography agrees" in text
    assert "Why is the sky blue?" in text
    assert "toy-Q4_0.gguf" in text
    assert "Turn 1: the request has no nonce and no seed" in text  # turn 1 had no nonce of the client's
    assert page.complaints == []


def test_a_receipt_in_the_text_form_of_the_api_is_read(page: Page) -> None:
    text = base64.urlsafe_b64encode(STORY.receipt(0).encode()).rstrip(b"=")
    assert give(page, {"receipt.txt": text + b"\n"}).startswith("✓ It holds")


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("whole", [False, True])
def test_a_receipt_that_opens_its_session_says_so(page: Page, whole: bool, opens: bool) -> None:
    held = STORY.receipt(0) if opens else STORY.receipt(0).without_capability()
    said = give(page, {"answer": (replace(kept(), receipt=held) if whole else held).encode()})
    assert ("whoever gets the file can read the conversation" in said) is opens


def test_a_text_file_counts_byte_for_byte(page: Page) -> None:
    files = {"answer.receipt": STORY.receipt(0).encode(), "answer.txt": STORY.texts[0].encode()}
    assert give(page, files).startswith("✓ It holds")


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("text", "text-differs", "It does not hold"),
        ("key", "untrusted-key", "Not decided"),
        ("receipt", "malformed", "can’t be read"),
        ("history", "no-evidence", "Not decided"),
        ("evidence", "bad-signature", "Not decided"),
    ],
)
def test_what_is_wrong_is_said(page: Page, what: str, code: str, words: str) -> None:
    receipt, evidence = STORY.receipt(1).encode(), STORY.evidence(Kind.FULL, [0, 1])
    answer, trusted = STORY.texts[1], KEY
    if what == "text":
        answer += "."
    elif what == "key":
        trusted = OTHER.public.vkey()
    elif what == "receipt":
        receipt = receipt[:200] + bytes([receipt[200] ^ 4]) + receipt[201:]
    elif what == "history":
        evidence = Story.open("another").turn(asked(), 3).evidence()
    else:
        evidence = type(evidence)(
            evidence.kind, evidence.head[:-1] + b"\0", evidence.manifest, evidence.opening, evidence.turns
        )
    text = give(page, {"a": receipt, "b": evidence.encode()}, trusted, answer)
    assert words in text.splitlines()[0]
    assert code in text
    assert page.complaints == []


def test_an_exchange_brings_receipt_text_and_request(page: Page) -> None:
    text = give(page, {"answer.exchange": kept().encode()})
    assert text.startswith("✓ It holds")
    assert "Your request is the one that was committed to" in text
    assert "Your text is the text that was committed" in text
    shown = page.evaluate("[...document.querySelectorAll('[data-caveat]')].map((item) => item.dataset.caveat)")
    assert not {"request-not-given", "times-not-given", "text-not-given"} & set(shown)
    assert {"model-not-run", "log-not-shown"} <= set(shown)
    assert page.complaints == []


def test_without_the_clients_copy_the_page_says_what_is_not_shown(page: Page) -> None:
    text = give(page, {"a": STORY.receipt(0).encode()})
    for name in ("model-not-run", "request-not-given", "text-not-given"):
        assert CAVEATS[name].replace("'", "’") in text


def test_the_page_says_what_evidence_alone_and_one_copy_do_not_show(page: Page) -> None:
    shown = (
        "[...document.querySelectorAll('[data-caveat]')].map((item) => `${item.dataset.caveat} ${item.textContent}`)"
    )
    story = FIRST.turn(asked(None, seed=7, verifiable=going_on("browser")), 5)
    evidence = story.evidence(Kind.FULL, [0, 1]).encode()
    assert give(page, {"e": evidence}).startswith("✓ It holds")
    assert "receipt-not-given" in {note.split()[0] for note in page.evaluate(shown)}
    page.evaluate("document.querySelectorAll('#chosen button').forEach((button) => button.click())")
    copy = Exchange(story.requests[1], story.texts[1], story.receipt(1), OPENED, OPENED + 9 * HOUR)
    assert give(page, {"e": evidence, "a.exchange": copy.encode()}).startswith("✓ It holds")
    notes = page.evaluate(shown)
    for name in ("request-not-given", "text-not-given"):
        assert [note for note in notes if note.startswith(name)] == [
            f"{name} Turn 0: {CAVEATS[name]}".replace("'", "’")
        ]
    assert "receipt-not-given" not in {note.split()[0] for note in notes}


def test_a_receipt_of_another_answer_than_the_exchanges_is_the_readers_mistake(page: Page) -> None:
    text = give(page, {"a.exchange": kept().encode(), "b": Story.open("another").turn(asked(), 3).receipt().encode()})
    assert "Not decided" in text.splitlines()[0]
    assert "of another answer than the receipt" in text
    assert page.complaints == []


def test_the_page_believes_witnesses_and_not_the_logs_own_key(page: Page) -> None:
    """A tree of one entry, signed by the log's key, proves membership of no log that anybody else sees."""
    head = STORY.head().sign(SESSION_KEY)
    tree = Tree.from_leaves([leaf_hash(head)])
    note = Note.parse(sign_checkpoint(Checkpoint(LOG_KEY.name, 1, tree.root()), LOG_KEY))
    keys = tuple(witness_key(key.public).vkey() for key in WITNESSES)
    lines = [cosign(note.text, key, 1) for key in WITNESSES]
    missing = CAVEATS["log-not-shown"].replace("'", "’")
    for count, named, quorum, said in (
        (0, (), "", "✓ It holds"),
        (0, keys, "1", "too-few-witnesses"),
        (1, keys, "", "too-few-witnesses"),
        (1, keys, "1", "✓ It holds"),
        (2, keys, "", "✓ It holds"),
        (None, keys, "", "too-few-witnesses"),
        (2, keys, "3", "1 to 2"),
        (2, (LOG_KEY.public.vkey(),), "", "witness key"),
        (2, (), "1", "keys of witnesses"),
    ):
        proof = None if count is None else TlogProof(0, (), note.add(*lines[:count]).format()).format()
        page.evaluate("document.querySelectorAll('#chosen button').forEach((button) => button.click())")
        text = give(page, {"a": STORY.receipt(1, log=proof).encode()}, witnesses=named, quorum=quorum)
        assert said in text
        if said.startswith("✓"):
            assert (missing in text) == (not named)
    assert page.complaints == []


def test_the_page_follows_keys_by_the_file_that_is_dropped_beside_the_receipt(page: Page) -> None:
    chain = Succession.sign(PROVIDER, OTHER, Role.PROVIDER, OPENED)
    receipt = STORY.receipt(1)
    newer = replace(receipt, manifest=MANIFEST.sign(OTHER))
    time = STORY.head().time
    stolen = [Revocation(Role.SESSION, SESSION_KEY.public, at, "stolen").sign(PROVIDER) for at in (time, time + 1)]
    forked = Succession.sign(PROVIDER, WITNESSES[0], Role.PROVIDER, OPENED)
    names = f"{PROVIDER.public.label}, now {OTHER.public.label}"
    for made, statements, *said in (
        (newer, None, "untrusted-key", "choose its keys file too"),
        (newer, [chain], "✓ It holds", f"Signed by {names}"),
        (newer, [chain, forked], "untrusted-key", "two successors"),
        (receipt, [stolen[0]], "Not decided", "key-revoked", "was revoked: stolen"),
        (receipt, [stolen[1]], "✓ It holds", CAVEATS["key-revoked-later"]),
        (receipt, [chain], "✓ It holds", f"Signed by {PROVIDER.public.label},"),
    ):
        page.evaluate("document.querySelectorAll('#chosen button').forEach((button) => button.click())")
        files = {"a": made.encode()} | ({} if statements is None else {"k": KeysFile(tuple(statements)).encode()})
        text = give(page, files)
        assert [part for part in said if part not in text] == []
    page.evaluate("document.querySelectorAll('#chosen button').forEach((button) => button.click())")
    head = STORY.head()
    other = replace(head, root=bytes(32)).sign(SESSION_KEY)
    file = Fraud(FraudKind.TWO_HEADS, (receipt.manifest, newer.manifest), (head.sign(SESSION_KEY), other))
    text = give(page, {"f": file.encode(), "k": KeysFile((chain, stolen[0])).encode()})
    assert "✗ It proves fraud" in text
    assert "Revocations, which change nothing here" in text
    assert page.complaints == []


def test_the_page_names_the_turns_of_which_something_is_not_shown(page: Page) -> None:
    """Of the receipt's turn, or of those that evidence opens; not of the others."""
    story = FIRST.turn(asked(None, verifiable=going_on("browser")), 5, finish=Finish.CANCELLED)
    names = ("provider-nonce", "manifest-not-pinned", "ending-unexplained")
    for files, said in (
        ({"a": story.receipt(0).encode()}, ""),
        ({"a": story.receipt(1).encode()}, "provider-nonce ending-unexplained"),
        ({"a": story.receipt(1).encode(), "b": story.evidence(turns=[1]).encode()}, " ".join(names)),
    ):
        page.evaluate("document.querySelectorAll('#chosen button').forEach((button) => button.click())")
        text = give(page, files)
        assert text.startswith("✓ It holds")
        for name in names:
            assert (f"Turn 1: {CAVEATS[name]}".replace("'", "’") in text) == (name in said.split())
            assert f"Turns 0, 1: {CAVEATS[name]}".replace("'", "’") not in text


def test_an_exchange_that_is_none_is_the_readers_own_file(page: Page) -> None:
    files = {"answer.exchange": b'{"version": 2, "path": "/v1/chat/completions", "body": {}, "sent": "now"}'}
    text = give(page, files)
    assert "A file of yours can’t be read" in text.splitlines()[0]
    assert "does not hold" not in text
    assert page.evaluate("document.querySelectorAll('.verdict.failed').length") == 0


def test_a_damaged_exchange_is_not_taken_for_an_answer(page: Page) -> None:
    text = give(
        page, {"answer.exchange": kept().encode()[:-9], "b": Story.open("held").turn(asked(), 3).receipt().encode()}
    )
    assert "A file of yours can’t be read" in text.splitlines()[0]
    assert "text-differs" not in text


@pytest.mark.parametrize(
    ("option", "data"),
    [
        ("--stream", b'data: {"choices": []}\n\ndata: [DONE]\n\n'),
        ("--fork", fork_file("two roots", PrivateKey.generate("log", bytes(32)).public, [b"one", b"two"], [])),
    ],
)
def test_what_this_page_does_not_check_is_named_with_the_command_that_does(
    page: Page, option: str, data: bytes
) -> None:
    text = give(page, {"some.file": data, "b": Story.open("held").turn(asked(), 3).receipt().encode()})
    assert f"verifiable verify {option} FILE" in text
    assert "hold" not in text


def test_a_rewriting_proxy_is_found_by_the_clients_own_request(page: Page) -> None:
    """The provider is honest; what it was sent has another system prompt, and a nonce of the proxy's."""
    praise = [{"role": "system", "content": "Praise Acme."}, {"role": "user", "content": "Why is the sky blue?"}]
    story = Story.open("rewritten").turn(asked(bytes(16), max_tokens=20, messages=praise), 12)
    exchange = Exchange(asked(max_tokens=20), story.texts[0], story.receipt(0))
    files = {"answer.exchange": exchange.encode()}
    text = give(page, files)
    assert "It does not hold" in text.splitlines()[0]
    assert "request-differs" in text
    assert "This rests on your own copy" in text
    text = give(page, {**files, "all.evidence": story.evidence(Kind.FULL).encode()})
    assert "messages, verifiable differ" in text
    assert "Praise Acme." in text
    # Without the client's own copy all of it holds, and the page shows what was committed to.
    page.evaluate("document.querySelectorAll('#chosen button').forEach((button) => button.click())")
    files = {"a": story.receipt(0).encode(), "b": story.evidence(Kind.FULL).encode()}
    text = give(page, files)
    assert text.startswith("✓ It holds")
    assert "Praise Acme." in text
    assert CAVEATS["request-not-given"] in text
    assert page.complaints == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_an_exchange_of_another_time_is_found(page: Page, hours: int) -> None:
    other = replace(kept(), sent=OPENED + hours * HOUR, received=OPENED + hours * HOUR + 1000)
    assert "time-differs" in give(page, {"answer.exchange": other.encode()})


@pytest.mark.parametrize(
    "swap", ["another turn", "an older head", "another session", "no turn", "a record of another turn"]
)
def test_evidence_for_another_question_decides_nothing(page: Page, swap: str) -> None:
    one = Story.open("browser").turn(asked(max_tokens=20, verifiable=NEW), 12)
    evidence = {
        "another turn": STORY.evidence(Kind.TOKENS, [0]),
        "an older head": one.evidence(),
        "another session": Story.open("another").turn(asked(), 3).evidence(),
        "no turn": STORY.evidence(Kind.TOKENS, []),
        "a record of another turn": STORY.evidence(Kind.RECORDS, [0], [STORY.tokens(0)[0].seq]),
    }[swap]
    text = give(page, {"a": STORY.receipt(1).encode(), "b": evidence.encode()})
    assert "Not decided" in text.splitlines()[0]
    assert "no-evidence" in text
    assert "another question than was asked" in text


def test_one_record_of_a_turn_says_that_the_rest_was_not_replayed(page: Page) -> None:
    evidence = STORY.evidence(Kind.RECORDS, [1], [STORY.tokens(1)[0].seq])
    text = give(page, {"a": STORY.receipt(1).encode(), "b": evidence.encode()})
    assert f"Turn 1: {CAVEATS['records-not-replayed']}".replace("'", "’") in text
    assert f"Turn 0: {CAVEATS['turns-not-opened']}" in text


@pytest.mark.parametrize(
    ("change", "only"),
    [
        (lambda text: f"{text}\r\n", "spaces at its end"),
        (lambda text: f"\ufeff{text}", "a byte order mark"),
        (lambda text: f"\ufeff {text}", "a byte order mark and spaces at its beginning"),
    ],
)
def test_a_text_that_a_program_changed_is_told(page: Page, change: Any, only: str) -> None:
    text = give(page, {"a": STORY.receipt(0).encode(), "answer.txt": change(STORY.texts[0]).encode()})
    assert "text-differs" in text
    assert f"{only} only" in text
    assert "your own copy first" in text


def test_two_histories_of_one_session_are_noticed(page: Page) -> None:
    """The provider signs two versions of the same session, one for the client and one for the auditor."""
    other = FIRST.turn(asked(None, temperature=0.7, verifiable=going_on("browser")), 4)
    text = give(page, {"a": STORY.receipt(1).encode(), "b": other.evidence(Kind.FULL, [0, 1]).encode()})
    assert "two-histories" in text


def test_names_from_files_are_never_markup(page: Page) -> None:
    story = Story.open("markup").turn(asked(messages=[{"role": "user", "content": "<img src=x onerror=alert(1)>"}]), 2)
    text = give(page, {"<b>r</b>": story.receipt().encode(), "e": story.evidence().encode()})
    assert "<img src=x onerror=alert(1)>" in text
    assert page.evaluate("document.querySelectorAll('#result img, #chosen b').length") == 0


def test_nothing_leaves_the_page(page: Page, url: str) -> None:
    """The page asks for nothing but itself, and its policy would not let it."""
    give(page, {"a": STORY.receipt(0).encode()})
    assert [address for address in page.requests if not address.endswith("favicon.ico")] == [url]
    blocked = "fetch('/anything').then(() => 'sent', () => 'blocked')"
    assert page.evaluate(blocked) == "blocked"
    image = "const i = new Image(); i.onload = () => done('sent'); i.onerror = () => done('blocked'); i.src = '/x.png'"
    assert page.evaluate(f"new Promise((done) => {{ {image}; }})") == "blocked"


def test_it_works_from_a_file(browser: Page) -> None:
    browser.open(PAGE.as_uri())
    cases = FILES["receipt"]["cases"]
    assert all(result["agrees"] for result in outcomes(browser, "receipt", cases))
    assert give(browser, {"a": STORY.receipt(0).encode()}).startswith("✓ It holds")


@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read_on_a_phone_in_light_and_dark(page: Page, dark: bool) -> None:
    page.device(360, 740, dark=dark)
    give(page, {"a": STORY.receipt(0).encode()}, OTHER.public.vkey())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    luminance = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"
    )
    assert (page.evaluate(luminance) < 128) == dark
    contrasts = page.evaluate(CONTRASTS)
    assert contrasts
    assert min(contrasts.values()) >= 4.5, contrasts


CONTRASTS = """(() => {
    const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            if (!/, 0\\)|transparent/.test(colour)) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const found = {};
    const kinds = "h1, h2, h3, p, label, legend, button, dt, dd, li, .mark, .detail, summary";
    for (const node of document.querySelectorAll(kinds)) {
        const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const name = node.tagName + "." + node.className;
        found[name] = Math.min(found[name] ?? 99, ratio);
    }
    return found;
})()"""


def test_a_keyboard_and_a_screen_reader_find_their_way(page: Page) -> None:
    unnamed = "[...document.querySelectorAll('input, textarea')].filter((field) => !field.labels.length).length"
    assert page.evaluate(unnamed) == 0
    assert page.evaluate("document.documentElement.lang") == "en"
    give(page, {"a": STORY.receipt(0).encode()})
    marks = "[...document.querySelectorAll('.mark')].every((mark) => mark.getAttribute('aria-label'))"
    assert page.evaluate(marks)
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((node) => Number(node.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_without_files_it_says_what_to_do(page: Page) -> None:
    page.evaluate("document.querySelector('[type=submit]').click()")
    page.evaluate("new Promise((done) => setTimeout(done, 200))")
    assert "Choose an exchange, a receipt" in page.evaluate("document.getElementById('result').innerText")


def test_the_pictures_can_be_taken(page: Page, tmp_path: Path) -> None:
    give(page, {"a": STORY.receipt(0).encode()})
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_fraud_file_is_read_out(page: Page) -> None:
    case = next(case for case in FILES["fraud"]["cases"] if case["name"].startswith("a token: that does not follow"))
    text = give(page, {"x.fraud": base64.b64decode(case["input"])})
    assert text.startswith("✗ It proves fraud")
    assert "token-not-sampled" in text
    assert page.complaints == []


def test_a_file_that_proves_nothing_accuses_nobody(page: Page) -> None:
    case = next(case for case in FILES["fraud"]["cases"] if case["name"] == "a token: that does")
    text = give(page, {"x.fraud": base64.b64decode(case["input"])})
    assert text.startswith("– Not decided")
    assert "nothing-checked" in text


@pytest.mark.parametrize("code", ["bad-signature", "root-differs", "other-manifest", "untrusted-key"])
def test_a_forged_proof_of_fraud_accuses_nobody(page: Page, code: str) -> None:
    case = next(case for case in FILES["fraud"]["cases"] if case["expected"].get("error") == code)
    assert give(page, {"x.fraud": base64.b64decode(case["input"])}).startswith("– Not decided")


def test_what_cannot_be_replayed_is_not_counted_as_replayed(page: Page) -> None:
    """A grammar needs the model's vocabulary, and penalties the tokens before."""
    story = Story.open("grammar").turn(asked(grammar="root ::= [a-z]+", verifiable=NEW), 3)
    story = story.turn(asked(repeat_penalty=1.5, verifiable=going_on("grammar")), 4)
    shown = [leaf.seq for leaf in (*story.tokens(0), *story.tokens(1)[1:])]
    text = give(page, {"some.evidence": story.evidence(Kind.RECORDS, [0, 1], shown).encode()})
    assert text.startswith("✓ It holds")
    assert "follow from their records" not in text
    assert "Turns 0, 1: not every token’s draw was replayed" in text


def test_what_a_manifest_says_beyond_the_usual_is_shown(page: Page) -> None:
    adapter = AdapterFile("style<b>.gguf", bytes(32), 4096, 0.5)
    model = replace(MANIFEST.model, adapters=(adapter,), suppressed=(3, 5))
    runtime = replace(MANIFEST.runtime, device="CUDA0", rope=Rope(freq_base=500_000.0, scaling="yarn"))
    plain = give(page, {"a": STORY.receipt(0).encode()})
    assert not any(word in plain for word in ("RoPE", "Device", "Suppressed", "adapter"))
    page.evaluate("document.querySelector('#chosen button').click()")
    story = Story.open("more", replace(MANIFEST, model=model, runtime=runtime)).turn(asked(), 3)
    text = give(page, {"a": story.receipt(0).encode(), "b": story.evidence(Kind.FULL).encode()})
    assert text.startswith("✓ It holds")
    assert "adapter × 0.5: style<b>.gguf (4,096 bytes)" in text
    assert "freq_base 500000, scaling yarn" in text
    assert "CUDA0" in text
    assert "2 tokens, by the model’s own list" in text


def test_a_chosen_file_can_be_taken_away(page: Page) -> None:
    give(page, {"a": STORY.receipt(0).encode(), "answer.txt": b"another text"})
    assert "text-differs" in page.evaluate("document.getElementById('result').innerText")
    page.evaluate("[...document.querySelectorAll('#chosen button')].at(-1).click()")
    assert page.evaluate("document.querySelectorAll('#chosen li').length") == 1
    assert give(page, {}).startswith("✓ It holds")
