"""The provider's engine without HTTP: a model, its manifest, its sessions, and answers with receipts.

engine = Engine("model.gguf", data="./provider")
answer = engine.chat([{"role": "user", "content": "Why is the sky blue?"}], nonce=b"12345678")
answer.text, answer.receipt
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.drafting.choice import Drafting
from engine.generation import Answer, Generation, QueueSink, Sink, collect
from engine.keys.keyring import Keyring
from engine.keys.watch import KeyWatch
from engine.ledger import Ledger, LedgerSettings
from engine.scheduling.scheduler import Scheduler, SchedulerSettings
from engine.scheduling.selfaudit import Finished, SelfAudit
from engine.sessions.dates import steady
from engine.sessions.evidence import EvidenceReader
from engine.sessions.manifests import Manifests
from engine.sessions.recorder import NoRecorder, Recorder, SessionRecorder
from engine.sessions.sessions import Sessions
from verifiable.errors import PolicyError
from verifiable.llama import library
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.context import Context
from verifiable.llama.gguf import sampling_metadata
from verifiable.llama.gguf.identity import identify
from verifiable.llama.gguf.lora import Adapter
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.grammar.grammar import Grammar, to_gbnf
from verifiable.llama.model import Model
from verifiable.llama.probe import cache as probe_cache
from verifiable.llama.probe.probe import ProbeResult, probe_and_pair
from verifiable.llama.probe.result import describe
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import RAW_LOGITS, Manifest, ModelIdentity
from verifiable.request.request import CHAT, COMPLETION, Request, parse_body
from verifiable.sampling.logits import Ranked
from verifiable.sampling.sampler import SamplingParams, choose

NONCE_BYTES = 16
_PATIENCE = 0.5
"""Processor seconds that a grammar may take to look at the whole vocabulary: it would hold up every answer."""
_DAY = 86_400_000  # milliseconds

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, what is done of it, and its total."""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineSettings:
    """`k` entries are committed for each token; probe results are kept in `cache`; a manifest is valid for
    `validity_days` and renewed when half are gone. `drafter` is one of `engine.drafting.choice.DRAFTERS`;
    `draft_model` the GGUF of a draft model. `self_audit` is the share of turns that are computed again when idle.
    `adapters` are LoRA adapters on top of the model. `defaults` are sampling parameters, by the names of
    `SamplingDefaults`, that count before the model's own where a request is silent.
    """

    runtime: RuntimeSettings = dataclasses.field(default_factory=RuntimeSettings)
    scheduler: SchedulerSettings = dataclasses.field(default_factory=SchedulerSettings)
    k: int = 40
    defaults: Mapping[str, float] = dataclasses.field(default_factory=dict)
    drafter: str = "none"
    draft_model: Path | None = None
    self_audit: float = 0.0
    name: str = "provider"
    validity_days: int = 90
    ledger: LedgerSettings = dataclasses.field(default_factory=LedgerSettings)
    cache: Path = dataclasses.field(default_factory=probe_cache.default_folder)
    adapters: tuple[Adapter, ...] = ()


class Engine:
    """Loads the model, proves its numerics, signs the manifest, and serves. Close it to end every session properly.

    Raises EngineError, MalformedError (the GGUF), StoreError (the data folder) or PolicyError (settings) on opening.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        data: str | os.PathLike[str],
        settings: EngineSettings | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.settings = settings or EngineSettings()
        self._drafting = Drafting(self.settings.drafter, self.settings.draft_model)
        if not 0.0 <= self.settings.self_audit <= 1.0:
            raise PolicyError("share of turns to audit", expected="0 to 1", found=self.settings.self_audit)
        if self.settings.scheduler.slots > self.settings.runtime.n_seq_max:
            runtime = dataclasses.replace(self.settings.runtime, n_seq_max=self.settings.scheduler.slots)
            self.settings = dataclasses.replace(self.settings, runtime=runtime)
        self.path = Path(model)
        self.model_name = self.path.name.removesuffix(".gguf")
        self._progress = progress or (lambda stage, done, total: None)
        runtime = self.settings.runtime
        library.load_library(runtime.tiled, passive=runtime.n_threads == 1)
        # The file first: what can't be served leaves no keys and no store behind.
        adapters = self.settings.adapters
        metadata = inspect(self.path).metadata
        self.defaults, self.left_out = sampling_metadata.defaults(metadata, self.settings.k, self.settings.defaults)
        identity = identify(self.path, lambda done, total: self._progress("hashing", done, total), adapters)
        self.ledger = Ledger(Path(data), self.settings.name, self.settings.ledger, self._now)
        self.store = self.ledger.store
        self.model: Model | None = None
        self._context: Context | None = None
        try:
            stated = self._stated(identity, self._probe(identity))
            self.manifests = Manifests(self.store, self.keys, stated, self._now)
            self.sessions = Sessions(self.store, self.manifests, self._now, steady)
            self.interrupted = self.sessions.recover()
            self.evidence = EvidenceReader(self.store, self.manifest.model.vocabulary, self.ledger.proof)
            self.model = self._load()
            self._context = Context(self.model, self._runtime())
            self._drafting.load(self.model, self._runtime())
            self.self_audit = SelfAudit(self.settings.self_audit, self.model, self.store, self.settings.k)
            self.scheduler = self._make_scheduler(self.model, self._context)
        except BaseException:
            self._free()
            raise
        self.ledger.start(self.manifest.model.vocabulary)
        self.scheduler.start()
        self.key_watch = KeyWatch(self.keys.folder, self.ledger.read_keys, self.use)
        self.key_watch.start()

    @property
    def keys(self) -> Keyring:
        """The keys in use."""
        return self.ledger.keys

    def use(self, keys: Keyring) -> None:
        """Go on with other keys: the log first, so that it has what the next manifest names."""
        self.ledger.use(keys)
        self.manifests.use(keys)

    @property
    def manifest(self) -> Manifest:
        """The manifest in force."""
        return self.manifests.in_force().manifest

    def submit(
        self, request: Request, sink: Sink, capability: bytes | None = None, principal: str | None = None
    ) -> Generation:
        """Start answering; events go to `sink`. Raises PolicyError where the request can't be served as asked.

        `principal` names who asks, where the caller knows it: cached prefixes are shared within a principal only.
        """
        if not request.commitments and (request.session is not None or request.turn):
            raise PolicyError(
                "a session needs commitments",
                expected='"commitments": "receipt"',
                found='"none"',
                parameter="verifiable.commitments",
            )
        self._check_ids(request)
        recorder: Recorder = NoRecorder()
        if request.commitments:
            recorder = self.sessions.recorder(request, capability)
        else:
            self.manifests.pinned(request.manifest)
        try:
            generation = self._generation(request, recorder, sink, principal)
            self.scheduler.submit(generation, recorder)
        except BaseException:
            recorder.abandon()
            raise
        return generation

    def _generation(self, request: Request, recorder: Recorder, sink: Sink, principal: str | None) -> Generation:
        """What is to be generated, and where it is committed to. Raises PolicyError."""
        session, turn, capability, opened = None, None, None, self._now()
        if isinstance(recorder, SessionRecorder):
            session, turn, opened = recorder.row.session.hex(), recorder.log.turns, recorder.row.opened
            capability = None if request.session is None else recorder.row.capability
        prompt = self._prompt(request, opened)
        params = request.params(self.manifest.defaults, self.manifest.k, self.settings.runtime.n_ctx, len(prompt))
        if isinstance(recorder, SessionRecorder):
            recorder.check_room(params.max_tokens, self.manifest.k)
        nonce = request.turn_nonce(os.urandom(NONCE_BYTES))
        key = request.turn_facts(prompt, params, nonce).key()
        namespace = f"key {principal}" if principal else None
        if namespace is None and request.session is not None:
            namespace = f"session {session}"
        generation = Generation(
            request=request,
            prompt=prompt,
            params=params,
            nonce=nonce,
            key=key,
            sink=sink,
            session=session,
            turn=turn,
            capability=capability,
            namespace=namespace,
            constraint=self._constraint(request),
        )
        if session is not None and turn is not None and self.settings.self_audit:
            finished = Finished(
                session=bytes.fromhex(session),
                turn=turn,
                prompt=tuple(prompt),
                params=params,
                key=key,
                constraint=request.constraint,
            )
            generation.durable = self._durable(finished)
        return generation

    def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Answer:
        """Answer a conversation and wait. `fields` are those of the API, `nonce` and `capability` in bytes."""
        return self._ask(CHAT, {"messages": [dict(message) for message in messages], **fields})

    def complete(self, prompt: str | Sequence[int], **fields: Any) -> Answer:
        """Continue a text, or token ids, and wait."""
        return self._ask(COMPLETION, {"prompt": prompt if isinstance(prompt, str) else list(prompt), **fields})

    def close(self, grace: float = 0.0) -> None:
        """Let running turns finish for `grace` seconds, end the rest as cancelled (signed and durable), free all."""
        self.key_watch.stop()
        self.scheduler.stop(grace)
        self._free()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What follows is what a dishonest provider would change; the adversary tests override it.

    def _runtime(self) -> RuntimeSettings:
        """The settings that the context really gets."""
        return self.settings.runtime

    def _load(self) -> Model:
        """The model that really answers."""
        runtime = self._runtime()
        return Model.load(
            self.path,
            repack=runtime.repack,
            n_gpu_layers=runtime.n_gpu_layers,
            progress=lambda done, total: self._progress("loading", done, total),
            adapters=self.settings.adapters,
            device=runtime.device,
        )

    def _prompt(self, request: Request, opened: int | None = None) -> list[int]:
        """The ids that are really evaluated; `opened` is the session's time."""
        if self.model is None:
            raise PolicyError("the engine is closed")
        return prompt_ids(self.model, request, opened)

    def _choose(self, ranked: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
        """The token that is really drawn."""
        return choose(ranked, params, key, position)

    def _make_scheduler(self, model: Model, context: Context) -> Scheduler:
        return Scheduler(
            model,
            context,
            self.settings.k,
            self.settings.scheduler,
            make_drafter=self._drafting.make,
            chooser=self._choose,
            policy=self._drafting.policy(),
            idle_work=self.self_audit,
        )

    def _durable(self, finished: Finished) -> Callable[[], None]:
        def durable() -> None:
            if self.self_audit.add(finished):
                self.scheduler.nudge()

        return durable

    def _check_ids(self, request: Request) -> None:
        vocabulary = self.manifest.model.vocabulary
        bad = next((token for token, _ in request.logit_bias if token >= vocabulary), None)
        if bad is not None:
            raise PolicyError(
                "parameter logit_bias", expected=f"ids below {vocabulary}", found=bad, parameter="logit_bias"
            )

    def _constraint(self, request: Request) -> Grammar | None:
        if not request.constraint or self.model is None:
            return None
        return Grammar(self.model, to_gbnf(request.constraint), _PATIENCE)

    def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        capability = body.pop("capability", None)
        nonce = body.pop("nonce", None)
        if isinstance(nonce, bytes):
            body["verifiable"] = {**body.get("verifiable", {}), "nonce": nonce.hex()}
        sink = QueueSink()
        generation = self.submit(parse_body(path, json.dumps(body).encode()), sink, capability)
        return dataclasses.replace(collect(sink), session=generation.session, capability=generation.capability)

    def _stated(self, identity: ModelIdentity, probed: ProbeResult) -> Manifest:
        """What the manifest says; its dates are those of a manifest that is signed at time 0."""
        return Manifest(
            provider=self.settings.name,
            valid_from=0,
            valid_to=self.settings.validity_days * _DAY,
            model=identity,
            runtime=describe(self.settings.runtime, probed),
            k=self.settings.k,
            value_kind=RAW_LOGITS,
            defaults=self.defaults,
            drafters=self._drafting.names,
            session_keys=(self.keys.session.public,),
            log=self.keys.log.public,
        )

    def _probe(self, identity: ModelIdentity) -> ProbeResult:
        """What the numerics probe found, under settings that it may have had to change."""
        runtime, probed = probe_and_pair(
            self.path,
            self.settings.runtime,
            progress=lambda done, total: self._progress("numerics probe", done, total),
            cache=self.settings.cache,
            identity=identity,
            adapters=self.settings.adapters,
        )
        self.settings = dataclasses.replace(self.settings, runtime=runtime)
        return probed

    def _now(self) -> int:
        """The clock: milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def _free(self) -> None:
        self._drafting.close()
        if self._context is not None:
            self._context.close()
        if self.model is not None:
            self.model.close()
        self.ledger.close()
