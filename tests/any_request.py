"""Requests up to every limit, and what has to be true of whatever is served for them (see `verifiable.limits`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from spec.browser.build import PAGE
from tests.integration.chromium import Page
from tests.integration.serving import chunks, http
from tests.made_up_engine import MadeUpEngine, MadeUpRows
from tests.sessions import identity, runtime
from verifiable import Exchange, limits, verify
from verifiable.checking.verdict import Status
from verifiable.manifest.manifest import AdapterFile, ModelFile
from verifiable.request.request import CHAT, COMPLETION
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session.evidence import Evidence
from verifiable.session.receipt import Receipt
from verifiable.wire.keys import PublicKey
from verifier.auditing.session import audit
from verifier.offline.offline import verify_with_evidence
from verifier.provider.client import Client

N_CTX = 64
VOCABULARY = 3000

# Requests.


def long(most: int, unit: str = 'aé水😀\n"') -> st.SearchStrategy[str]:
    """Text of 1 to `most` characters, as long as it may be more often than not."""
    size = st.one_of(st.just(most), st.integers(1, most), st.integers(1, 8))
    return st.builds(lambda letter, count: letter * count, st.sampled_from(unit), size)


def ends(low: float, high: float) -> st.SearchStrategy[float]:
    return st.one_of(st.sampled_from([low, high]), st.floats(low, high))


def whole(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([low, high]), st.integers(low, high))


def biases(most: int) -> st.SearchStrategy[dict[str, float]]:
    count = st.one_of(st.just(most), st.integers(0, 5))
    return st.builds(lambda n, bias: {str(2 * each + 1): bias for each in range(n)}, count, ends(*limits.BIAS))


def deep(levels: int) -> Any:
    value: Any = -limits.JSON_NUMBER
    for level in range(levels):
        value = [value] if level % 2 else {"ü": value, "x": 5e-324}
    return value


NAME = long(limits.NAME_CHARACTERS)
TEXT = st.one_of(long(300), long(200_000))
CONTENT = st.one_of(TEXT, st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": long(50)}), max_size=3))
CALL = st.builds(
    lambda name, call, given: {"id": call, "type": "function", "function": {"name": name, "arguments": given}},
    NAME,
    NAME,
    long(100),
)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENT, "name": NAME}),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.lists(CALL, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT, "tool_call_id": NAME}),
)
NUMBERS = {name: ends(*range_) for name, range_ in limits.NUMBERS.items() if name != "temperature"}
WHOLE = {
    "top_k": whole(*limits.INTEGERS["top_k"]),
    "repeat_last_n": whole(*limits.INTEGERS["repeat_last_n"]),
    "seed": whole(*limits.INTEGERS["seed"]),
    "max_tokens": st.one_of(st.integers(1, 12), st.just(limits.U31)),
}
COMMON: dict[str, st.SearchStrategy[Any]] = {
    **NUMBERS,
    **WHOLE,
    "temperature": st.one_of(st.just(0), ends(*limits.TEMPERATURE)),
    "stop": st.lists(long(limits.STOP_CHARACTERS), max_size=limits.STOPS),
    "logit_bias": biases(limits.BIASES),
    "ignore_eos": st.booleans(),
    "stream": st.booleans(),
    "user": st.one_of(long(2000), st.just(deep(limits.JSON_DEPTH - 1))),
    "metadata": st.dictionaries(
        long(10), st.one_of(ends(-limits.JSON_NUMBER, limits.JSON_NUMBER), st.none()), max_size=3
    ),
}


def tools(count: int, name: str, forced: bool) -> dict[str, Any]:
    made = [
        {"type": "function", "function": {"name": f"{each}{name}"[: limits.NAME_CHARACTERS]}} for each in range(count)
    ]
    return {"tools": made, "tool_choice": "required" if forced else "auto"}


def schema(size: int) -> dict[str, Any]:
    """A response format whose canonical form has so many bytes."""
    inner = {"type": "object", "description": "d" * (size - len('{"schema":{"description":"","type":"object"}}'))}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": inner}}}


FORM: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.builds(lambda text: {"grammar": text}, long(limits.FORM)),
    st.builds(schema, st.one_of(st.just(limits.FORM), st.integers(60, 500))),
)
CHAT_FORM = st.one_of(FORM, st.builds(tools, st.integers(1, limits.TOOLS), NAME, st.booleans()))
EXTRA = st.fixed_dictionaries(
    {},
    optional={
        "nonce": st.binary(min_size=limits.NONCE_BYTES[0], max_size=limits.NONCE_BYTES[1]).map(bytes.hex),
        "commitments": st.sampled_from(["receipt", "stream"]),
        "manifest": st.just(""),
        "turn": st.just(0),
    },
)
CHAT_BODY = st.builds(
    lambda body, form: {**body, **form},
    st.fixed_dictionaries(
        {"messages": st.lists(MESSAGE, min_size=1, max_size=4), "verifiable": EXTRA},
        optional={**COMMON, "logprobs": st.just(True), "max_completion_tokens": st.integers(1, 9)},
    ),
    CHAT_FORM,
)
COMPLETION_BODY = st.builds(
    lambda body, form: {**body, **form},
    st.fixed_dictionaries(
        {
            "prompt": st.one_of(long(300), st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=N_CTX - 1)),
            "verifiable": EXTRA,
        },
        optional={**COMMON, "logprobs": whole(*limits.INTEGERS["logprobs"])},
    ),
    FORM,
)
REQUEST = st.one_of(st.tuples(st.just(CHAT), CHAT_BODY), st.tuples(st.just(COMPLETION), COMPLETION_BODY))


@dataclass(frozen=True, slots=True)
class Case:
    """Requests to one session of one engine; a single one may name no session."""

    engine: int
    requests: list[tuple[str, dict[str, Any]]]
    named: bool


CASE = st.builds(
    lambda engine, requests, named: Case(engine, requests, named or len(requests) > 1),
    st.integers(0, 2),
    st.lists(REQUEST, min_size=1, max_size=4),
    st.booleans(),
)


# Providers: with the smallest manifest, a usual one, and about the largest.


def engines(folder: Path) -> list[MadeUpEngine]:
    plain = {"runtime": runtime(n_ctx=N_CTX)}
    name = "n" * limits.FILE_NAME_BYTES
    files = (ModelFile(name, b"f" * 32, limits.U63),) * limits.FILES
    adapters = (AdapterFile(name, b"a" * 32, limits.U63, 0.1),) * limits.ADAPTERS
    barred = tuple(range(VOCABULARY, VOCABULARY + limits.SUPPRESSED))
    large = identity(files=files, vocabulary=VOCABULARY + limits.SUPPRESSED, adapters=adapters, suppressed=barred)
    texts = {"build": "b" * limits.BUILD_BYTES, "system": "s" * limits.SYSTEM_BYTES}
    return [
        MadeUpEngine(folder / "small", k=1, model=identity(vocabulary=VOCABULARY), **plain),
        MadeUpEngine(folder / "usual", k=40, model=identity(vocabulary=VOCABULARY), **plain),
        MadeUpEngine(
            folder / "large",
            k=limits.ENTRIES,
            model=large,
            runtime=runtime(n_ctx=N_CTX, **texts),
            defaults=SamplingDefaults(limits.TEMPERATURE[0], limits.ENTRIES, repeat_penalty=1.1, repeat_last_n=64),
            drafters=("d" * limits.DRAFTER_BYTES,) * limits.DRAFTERS,
        ),
    ]


@dataclass
class World:
    """Engines that are served, and what has been handed out: cases for the page's vector runner."""

    engines: Sequence[MadeUpEngine]
    urls: Sequence[str]
    served: int = 0
    refused: list[str] = field(default_factory=list)
    handed: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"receipt": [], "evidence": []})
    longest: int = 0

    def play(self, case: Case) -> None:
        """Ask everything of a case, and hold all that comes of it against every reader but the page."""
        engine, url = self.engines[case.engine], self.urls[case.engine]
        trust, rows = [engine.keys.provider.public], MadeUpRows.of(engine)
        session, capability, last = "new" if case.named else None, b"", None
        turns = 0
        for path, body in case.requests:
            extra = {**body["verifiable"], **({} if session is None else {"session": session})}
            extra |= {"manifest": engine.manifest.digest().hex()} if "manifest" in extra else {}
            extra |= {"turn": turns} if "turn" in extra else {}
            sent = {**body, "verifiable": extra}
            answer = ask(url, path, sent, capability)
            if isinstance(answer, str):
                self.refused.append(answer)
                continue
            text, receipt, capability = answer
            self.served += 1
            turns += 1
            last = Exchange.of(sent, path=path, text=text, receipt=receipt)
            assert Exchange.parse(last.encode()) == last
            session = self._check_receipt(last, trust)
        if last is None:
            return
        assert last.receipt is not None
        with Client(url, capability=last.receipt.capability) as client:
            fetched = client.receipt(bytes.fromhex(session or ""))
            self._check_receipt(Exchange(last.request, last.text, Receipt.parse(fetched)), trust)
            for kind in ("tokens", "full"):
                self._check_evidence(client.evidence(bytes.fromhex(session or ""), kind), last, trust, rows)

    def _check_receipt(self, exchange: Exchange, trust: Sequence[PublicKey]) -> str:
        assert exchange.receipt is not None
        verdict = verify(exchange, trust=trust)
        assert verdict.status is Status.RECEIPT, verdict
        self._hand("receipt", exchange.receipt.encode(), trust, exchange.text)
        return verdict.session or ""

    def _check_evidence(self, data: bytes, last: Exchange, trust: Sequence[PublicKey], rows: MadeUpRows) -> None:
        assert last.receipt is not None
        evidence = Evidence.parse(data)
        offline = verify_with_evidence(last.receipt, evidence, trust, last.asked)
        assert offline.status is Status.RECEIPT, offline
        verdict = audit(evidence, rows, trust, receipt=last.receipt, asked=last.asked)
        assert verdict.status is Status.EXACT, verdict
        assert verdict.tokens_checked == verdict.tokens_total
        self._hand("evidence", data, trust)

    def _hand(self, operation: str, data: bytes, trust: Sequence[PublicKey], text: str | None = None) -> None:
        self.longest = max(self.longest, len(data))
        trusted = [key.vkey() for key in trust]
        case = {"name": str(len(self.handed[operation])), "input": base64.b64encode(data).decode(), "trusted": trusted}
        self.handed[operation].append({**case, "text": text} if text is not None else case)

    def shown(self, run: Callable[[str, list[dict[str, Any]]], list[dict[str, Any]]]) -> int:
        """Hold what was handed out against the page's runner, in calls of bounded size; returns how many it read."""
        read = 0
        for operation, cases in self.handed.items():
            while cases:
                batch = [cases.pop()]
                while cases and sum(len(case["input"]) for case in batch) < 1 << 24:
                    batch.append(cases.pop())
                wrong = [found["outcome"] for found in run(operation, batch) if "ok" not in found["outcome"]]
                assert not wrong, wrong[:3]
                read += len(batch)
        return read


def ask(url: str, path: str, body: dict[str, Any], capability: bytes) -> tuple[str, bytes, bytes] | str:
    """Text, receipt and owner's capability (none where the session is over) of an answer, or why there is none."""
    headers = {"X-Verifiable-Capability": capability.hex()} if capability else {}
    with httpx.stream("POST", url + path, content=json.dumps(body).encode(), headers=headers, timeout=60) as response:
        if response.status_code != 200:
            assert response.status_code in (400, 409), response.read()
            return str(json.loads(response.read())["error"]["message"])
        if body.get("stream"):
            events = list(chunks(response))
            parts = [event["choices"][0] for event in events if event["choices"]]
            text = "".join(part["text"] if "text" in part else part["delta"].get("content") or "" for part in parts)
            extra = next(event["verifiable"] for event in events if "receipt" in (event.get("verifiable") or {}))
        else:
            whole_answer = json.loads(response.read())
            choice = whole_answer["choices"][0]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            extra = whole_answer["verifiable"]
    receipt = extra["receipt"]
    owner = bytes.fromhex(extra["capability"] or "")
    return text, base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4)), owner


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Three providers on this machine."""
    with ExitStack() as stack:
        made = engines(folder)
        for engine in made:
            stack.callback(engine.close)
        yield World(made, [stack.enter_context(http(engine, [])) for engine in made])


def play(made: World, count: int, number: int = 0) -> None:
    """So many cases, the same in every run for a number."""

    @seed(number)
    @given(CASE)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def each(case: Case) -> None:
        made.play(case)

    each()


def page_runner(page: Page) -> Callable[[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """What runs cases in `docs/verify.html`, loaded in a browser."""
    page.open(PAGE.as_uri())

    def run(operation: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        file = json.dumps({"operation": operation, "cases": cases})
        found: list[dict[str, Any]] = page.evaluate(f"verifiableInference.runVectors({file})")
        return found

    return run
