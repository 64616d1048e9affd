"""What people see of an audit: the same facts on the terminal, in JSON and in the HTML file, and nothing injected."""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import TRUST, Recording, ask, identity, made_up, manifest
from verifiable.checking.caveats import CAVEATS, Caveat
from verifiable.checking.verdict import INCONCLUSIVE_CODES, Status, Verdict
from verifiable.errors import EngineError, MalformedError, PolicyError
from verifiable.llama.gguf.types import U32, Field, GGUFInfo, TensorInfo
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import ModelFile
from verifiable.sampling.logits import Entries
from verifier.auditing.scope import audited
from verifier.auditing.session import audit
from verifier.campaign.outcome import Challenge, Outcome, merge
from verifier.campaign.plan import plan
from verifier.model import pipe
from verifier.model.memory import check_cache, check_memory, context_bytes, room
from verifier.offline.fault import Fault
from verifier.report import report, show
from verifier.report.meaning import MEANINGS, meaning

HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J\x00\u202e<img src=x onerror=y>"
VOID = {"meta", "img", "br", "input", "link"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what a browser would show, load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.shown: list[str] = []
        self.labels: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.labels += [value or "" for name, value in attrs if name == "aria-label"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.shown.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.shown))


def verdict(row: Any = made_up, session: int = 7, tokens: int = 12, full: bool = True, **body: Any) -> Verdict:
    made = Recording(session=bytes([session]) * 16)
    made.turn(ask(max_tokens=tokens, **body), PROMPT, row)
    from verifiable.session.evidence import Kind

    data = made.evidence(Kind.FULL).encode()
    return audit(made.evidence(), MadeUpModel(), TRUST, fetch_full=(lambda turn: data) if full else None)


def shifted(step: float, start: int = 0) -> Any:
    def row(ids: Any) -> Entries:
        entries = made_up(ids)
        return entries if len(ids) < len(PROMPT) + start else Entries(entries.ids, entries.logits + np.float32(step))

    return row


def outcome(*verdicts: Verdict, population: int | None = None, **fields: Any) -> Outcome:
    count = len(verdicts)
    challenge = None if population is None else Challenge(b"\xab" * 32, plan([5] * population, count), count)
    facts = {"command": "verifiable audit X", "model_file": "m.gguf", "started": 1_800_000_000_000, **fields}
    return Outcome("https://provider.example", verdicts, challenge, **facts)


EXACT = outcome(verdict(), verdict(session=8), population=50)
FAILED = outcome(verdict(), verdict(shifted(0.5, 4), 9), verdict(shifted(2.0), 10), population=3)
UNDECIDED = outcome(Fault("no-evidence", "gone").verdict(session="aa" * 16), verdict(), population=2)
NONE = outcome(population=0)
ALL = {"exact": EXACT, "failed": FAILED, "undecided": UNDECIDED, "none": NONE}


def test_the_worst_verdict_decides() -> None:
    assert [found.status for found in ALL.values()] == [
        Status.EXACT,
        Status.FAILED,
        Status.INCONCLUSIVE,
        Status.INCONCLUSIVE,
    ]
    assert FAILED.worst is not None
    assert (FAILED.worst.code, FAILED.worst.token) == ("logits-differ", 4)
    assert FAILED.tokens_checked == 12
    assert FAILED.tokens_compared == FAILED.tokens_total == 36
    assert [len(group) for group in FAILED.findings()] == [2]


@pytest.mark.parametrize("name", ALL)
def test_terminal_json_and_html_say_the_same(name: str) -> None:
    found = ALL[name]
    lines, facts, page = "\n".join(show.audit(found)), found.to_json(), Page(report.render(found))
    assert json.loads(json.dumps(facts))["exit_code"] == facts["exit_code"]
    assert facts["exit_code"] == found.status.exit_code
    word = {Status.EXACT: "VERIFIED", Status.FAILED: "FAILED"}.get(found.status, "INCONCLUSIVE")
    assert word in lines
    assert page.text.startswith(" Audit: " + {"VERIFIED": "Verified, exactly"}.get(word, word.capitalize()))
    for caveat in found.caveats():
        assert str(caveat) in lines
        assert str(caveat) in page.text
        assert ("data-caveat", caveat.id) in page.attributes
        assert {"id": caveat.id, "what": str(caveat)} in facts["not_shown"]
    if found.worst is not None and found.worst.code is not None:
        for text in (found.worst.code, meaning(found.worst.code).means):
            assert text in lines
            assert text in page.text
    if found.challenge is not None:
        assert facts["challenge"]["seed"] == "ab" * 32
        assert "ab" * 32 in page.text
    assert "\x1b" not in lines


def test_a_failure_shows_where_expected_and_found() -> None:
    lines = "\n".join(show.audit(FAILED))
    assert "session 09090909…, turn 0, token 4 (position 11)" in lines
    assert "also session 0a0a0a0a…, turn 0, token 0" in lines
    worst = FAILED.worst
    assert worst is not None
    for text in (worst.expected, worst.found, worst.guess):
        assert text is not None
        assert text in lines
        assert text in Page(report.render(FAILED)).text
    assert "a guess" in lines


def test_the_strip_has_a_cell_a_token_and_frames_the_first_difference() -> None:
    text = report.render(FAILED)
    strips = re.findall(r'<div class="strip" role="img" aria-label="([^"]*)">(.*?)</div>', text)
    assert len(strips) == 3
    label, cells = strips[0]
    assert label == "12 tokens, 4 the same, 8 differ, the first at token 4"
    assert cells.count("<i") == 12
    assert cells.startswith("<i></i>" * 4 + '<i class="b f"')
    assert '<i class="c f"' in strips[1][1]
    assert strips[2][0] == "12 tokens, 12 the same"


def test_a_strip_of_suspects_and_of_wrong_draws() -> None:
    coarse = report.render(outcome(verdict(shifted(0.5, 9), full=False)))
    assert 'class="q' in coarse
    assert "suspect" in coarse


def test_a_very_long_answer_is_cut_in_the_picture_only() -> None:
    long = verdict()
    details = audited(long)
    (turn,) = details.turns
    turn = replace(turn, result=replace(turn.result, strip="=" * 10_000))
    text = report.render(outcome(replace(long, details=replace(details, turns=(turn,)))))
    assert text.count("<i></i>") < 5000
    assert "the first 4000 are drawn" in text


def test_nothing_of_a_providers_gets_into_the_page() -> None:
    """Names, files, sessions and messages that a provider chose appear as text or not at all."""
    made = Recording(
        manifest=manifest(provider=HOSTILE, model=identity(files=(ModelFile(HOSTILE, b"f" * 32, 1),))),
    )
    made.turn(ask(max_tokens=3), PROMPT)
    model = MadeUpModel(who=identity(files=(ModelFile("mine.gguf", b"f" * 32, 1),)))
    honest = audit(made.evidence(), model, TRUST)
    assert honest.status is Status.EXACT
    said: dict[str, Any] = dict.fromkeys(("code", "session", "expected", "found", "hint", "guess"), HOSTILE)
    nasty = Verdict(Status.FAILED, HOSTILE, **said)
    found = outcome(honest, nasty, population=5, saved=(HOSTILE,), trusted=(HOSTILE,), model_file=HOSTILE)
    page = Page(report.render(found))
    assert "script" not in page.tags
    assert "img" not in page.tags
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "onerror", "onclick", "action"}
    assert "<script>alert(1)</script>" in page.text  # as text
    assert not any(char in report.render(found) for char in "\x1b\x00\u202e")
    for lines in (show.audit(found), show.failure(nasty), show.verification(nasty)):
        assert not any(ord(char) < 32 or char in "\x7f\u202e" for line in lines for char in line)


def test_the_page_loads_nothing_and_is_told_to_screen_readers() -> None:
    text = report.render(FAILED)
    page = Page(text)
    assert "default-src 'none'" in text
    assert "url(" not in text
    assert "@import" not in text
    assert not any(tag in page.tags for tag in ("script", "link", "iframe", "object"))
    assert 'lang="en"' in text
    assert page.tags.count("h1") == 1
    assert page.tags.count("caption") == page.tags.count("table") == 1
    assert all(label for label in page.labels)
    assert "@media print" in text
    assert "prefers-color-scheme: dark" in text


def test_many_sessions_are_summed_up() -> None:
    many = outcome(*[verdict(session=number, verifiable={}) for number in range(1, 6)], population=5)
    limits = many.limits()
    assert any("5 of 5 sessions" in limit and "shopped" in limit for limit in limits)
    assert len(limits) == len(set(limits))


def test_notes_of_many_sessions_stand_in_their_order_whatever_their_words() -> None:
    """Each once, counted by session; of which turns it is said is left out."""
    first = (Caveat("turns-not-opened", turns=(0, 2)), Caveat("log-not-shown", "why"))
    second = (Caveat("turns-not-opened", turns=(1,)), Caveat("session-open"), Caveat("model-not-run"))
    assert list(map(str, merge([first, second]))) == [
        "Not opened by the evidence (2 of 2 sessions)",
        f"{CAVEATS['log-not-shown']}: why (1 of 2 sessions)",
        f"{CAVEATS['session-open']} (1 of 2 sessions)",
        f"{CAVEATS['model-not-run']} (1 of 2 sessions)",
    ]
    said = ["Turns 0, 2: not opened by the evidence", f"{CAVEATS['log-not-shown']}: why"]
    assert list(map(str, merge([first]))) == said


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) >= INCONCLUSIVE_CODES
    for code in (*MEANINGS, "a-code-of-tomorrow", None):
        told = meaning(code)
        assert told.means.endswith(".")
        assert told.not_proven
    assert "does not hold" in meaning("a-code-of-tomorrow").means
    assert "holds" in meaning(None).means  # a pass has no code


def test_times_and_names_are_short() -> None:
    assert show.moment(1_800_000_000_000) == "2027-01-15 08:00:00 UTC"
    assert show.moment(2**63 - 1) == f"{2**63 - 1} ms"
    assert show.short("ab" * 16) == "abababab…"
    assert show.short("abc") == "abc"
    assert show.short(None) == ""


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show.colour("x", "31") == "x"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert show.colour("x", "31") == "\x1b[1;31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert show.colour("x", "31") == "x"


# The pipe to the worker process, and its memory.


def reader(patience: float = 5.0) -> tuple[pipe.Reader, Any]:
    source, sink = os.pipe()
    return pipe.Reader(source, patience), os.fdopen(sink, "wb")


def test_messages_arrive_whole() -> None:
    read, sink = reader()
    pipe.write(sink, ["rows", b"x" * 30_000])
    pipe.write(sink, ["done", None])
    assert read.read() == ["rows", b"x" * 30_000]
    assert read.read() == ["done", None]
    sink.close()
    with pytest.raises(pipe.ClosedError):
        read.read()
    read.close()


def test_a_silent_pipe_is_given_up() -> None:
    read, sink = reader(0.05)
    with pytest.raises(pipe.StalledError):
        read.read()
    sink.write(b"\0\0\0\x05abc")
    sink.flush()
    with pytest.raises(pipe.StalledError):
        read.read()
    sink.close()
    read.close()


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x01\xff", b"\0\0\0\x02\x00\x00", b"\0\0\0\x01\xa0"])
def test_what_is_no_message_is_malformed(data: bytes) -> None:
    read, sink = reader()
    sink.write(data)
    sink.close()
    with pytest.raises(MalformedError):
        read.read()
    read.close()


def test_commands_are_read_until_the_parent_leaves() -> None:
    source, sink = os.pipe()
    read = pipe.Reader(source)
    with os.fdopen(sink, "wb") as write:
        thread = threading.Thread(target=lambda: pipe.write(write, ["load", 1, b"x"]))
        thread.start()
        assert read.read() == ["load", 1, b"x"]
        thread.join()
    with pytest.raises(pipe.ClosedError):
        read.read()
    read.close()


METADATA = {
    "general.architecture": "x",
    "x.block_count": 30,
    "x.attention.head_count": 9,
    "x.attention.head_count_kv": 3,
    "x.embedding_length": 576,
}


def described(metadata: dict[str, int], long_factors: bool = False) -> GGUFInfo:
    values: dict[str, int | str] = {"general.architecture": "x", **metadata}
    fields = {key: Field(U32, None, value, 0, 0) for key, value in values.items()}
    tensors = (TensorInfo("rope_factors_long.weight", (48,), 0, 0, 48, 192),) if long_factors else ()
    return GGUFInfo(3, fields, tensors, 32, 0, 0)


def test_a_context_that_is_too_long_for_the_machine_is_refused() -> None:
    settings = RuntimeSettings(n_ctx=4096, n_seq_max=1)
    assert context_bytes(METADATA, settings) == 4096 * 30 * 3 * 64 * 2 * 2
    assert context_bytes({**METADATA, "x.attention.head_count_kv": [3, 1]}, settings) == 4096 * 30 * 3 * 64 * 4
    assert context_bytes({**METADATA, "x.attention.key_length": 128}, settings) == 4096 * 30 * 3 * (128 + 64) * 2
    assert context_bytes(METADATA, replace(settings, type_k="q8_0")) == 4096 * 30 * 3 * 64 * (34 / 32 + 2)
    check_memory(METADATA, settings)
    check_memory({}, settings)
    with pytest.raises(EngineError):
        check_memory(METADATA, replace(settings, n_ctx=2**31 - 1))


def test_a_cache_that_no_machine_has_is_no_setting() -> None:
    settings = RuntimeSettings(n_ctx=2**24, n_seq_max=1, type_k="q8_0", type_v="q4_0")
    check_cache(METADATA, settings)
    check_cache({}, replace(settings, n_ctx=2**31 - 1))  # a model without a cache, for all that is known
    with pytest.raises(PolicyError, match="no machine"):
        check_cache(METADATA, RuntimeSettings(n_ctx=2**31 - 1, n_seq_max=1))
    for name in ("key", "value"):
        with pytest.raises(PolicyError, match="divisible by 32"):
            check_cache({**METADATA, f"x.attention.{name}_length": 80}, settings)
        check_cache({**METADATA, f"x.attention.{name}_length": 80}, RuntimeSettings())


def test_room_goes_by_the_turn_and_stays_on_its_side_of_the_original_context() -> None:
    settings = RuntimeSettings(n_ctx=250_000, n_seq_max=1)
    infos = [described({"x.context_length": 131_072})]
    assert room(infos, settings, 12) == 4096
    assert room(infos, settings, 4097) == 8192
    assert room(infos, settings, 249_999) == 250_000
    assert room(infos, replace(settings, n_ctx=512), 12) == 512
    twofold = [*infos, described({}, long_factors=True)]
    assert room(twofold, settings, 12) > 131_072
    assert room(twofold, replace(settings, n_ctx=131_072), 12) == 4096
    told = {"x.context_length": 131_072, "x.rope.scaling.original_context_length": 4096}
    twofold = [described(told, long_factors=True)]
    assert room(twofold, settings, 12) == 8192
    assert room(twofold, replace(settings, n_ctx=4096), 12) == 4096
