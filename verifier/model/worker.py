"""A model on this machine, in a process of its own, and the auditor's handle on it.

Every call either returns a checked value or raises one of our errors. A crash or a hang of the process is a
VerificationError with code `auditor-crashed`; the next call starts a new process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from os import PathLike, fspath

from verifiable import limits
from verifiable.llama.gguf.lora import Adapter, adapters_to_cbor
from verifiable.llama.settings import RuntimeSettings, as_dict, settings_of
from verifiable.manifest.libraries import from_cbor, to_cbor
from verifiable.manifest.manifest import ModelIdentity, Runtime
from verifiable.manifest.rope import MODELS_OWN, Rope
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries, Ids
from verifiable.sampling.sampler import SamplingParams
from verifiable.wire import encoding
from verifiable.wire.encoding import Value
from verifiable.wire.ids import pack, unpack
from verifier.model.child import Child
from verifier.model.reexecute import Probed, Progress
from verifier.model.texts import Conversation

STALL = 900.0
"""Seconds without a word from the process after which it counts as hung. A chunk of rows must take less."""
ROWS = 512
"""Most rows of one decode. Under invariant settings any number gives the same bits, whatever the manifest says."""
AT_ONCE = 8
"""Conversations that are generated in one batch."""


@dataclass(slots=True)
class _Known:
    """What the processes of one file know of it; the lock is held while one of them finds out."""

    identity: ModelIdentity | None = None
    probed: dict[RuntimeSettings, Probed] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class Worker:
    """A model on this machine, in a process of its own. Use it in a `with` statement, or close it.

    Implements `Reexecutor`.

    Args:
        model: the GGUF file, or the first of its parts.
        threads: threads for evaluation; change no bit where the probe says invariant.
        cache: folder in which probe results are kept; "" is the user's own, None to probe anew each time.
        progress: told how far hashing, probing, loading and evaluation are.
        stall: seconds without any sign after which the process is given up.
        adapters: LoRA adapters on top of the model.
        share: whether what one turn begins with is kept for the next that begins alike. It changes no bit, since it is
            done only under settings that the numerics probe found invariant here.

    Attributes:
        reused: tokens so far that were not computed, since the turn before began with them.

    Raises:
        ModuleNotFoundError: the extra `llama` is not installed.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        threads: int = 1,
        cache: str | PathLike[str] | None = "",
        progress: Progress | None = None,
        stall: float = STALL,
        adapters: Sequence[Adapter] = (),
        share: bool = True,
    ) -> None:
        if find_spec("llama_cpp") is None:
            raise ModuleNotFoundError("llama-cpp-python is not installed", name="llama_cpp")
        self.path = os.path.abspath(fspath(model))
        self._adapters = tuple(adapters)
        self.progress = progress
        self._threads = threads
        self._cache = os.path.abspath(fspath(cache)) if cache else None if cache is None else ""
        self._stall = stall
        self._child = Child("verifier.model.process", stall)
        self._tiled: bool | None = None
        self.reused = 0
        self._share = share
        self._known = _Known()

    def twin(self) -> Worker:
        """Another process for the same file, to work beside this one. What one of them learns of it both know."""
        made = Worker(
            self.path,
            threads=self._threads,
            cache=self._cache,
            stall=self._stall,
            adapters=self._adapters,
            share=self._share,
        )
        made._known = self._known
        return made

    @property
    def pid(self) -> int | None:
        """The id of its process; None where none runs."""
        return self._child.pid

    def identity(self) -> ModelIdentity:
        """As in `Reexecutor`; read once."""
        with self._known.lock:
            if self._known.identity is None:
                self._known.identity = ModelIdentity.from_cbor(self._call("identify", *self._files()))
            return self._known.identity

    def probe(self, runtime: Runtime) -> Probed:
        """As in `Reexecutor`; made once for each settings."""
        settings = self._settings(runtime)
        with self._known.lock:
            if settings not in self._known.probed:
                answer = self._call("probe", *self._load(settings), self._cache)
                invariant, fingerprint, build, files, compiler, processor = encoding.array(answer, 6, "probe")
                self._known.probed[settings] = Probed(
                    encoding.boolean(invariant, "invariant"),
                    encoding.bytes_(fingerprint, "fingerprint", 32),
                    tuple(encoding.text(part, "build", 8192) for part in encoding.array(build, None, "build")),
                    from_cbor(files),
                    encoding.text(compiler, "compiler", limits.COMPILER_BYTES),
                    encoding.boolean(processor, "processor only"),
                )
            return self._known.probed[settings]

    def check(self, runtime: Runtime) -> None:
        """As in `Reexecutor`."""
        settings = settings_of(runtime, n_threads=self._threads)
        self._call("check", *self._words(), dict(as_dict(settings).items()), to_cbor(runtime.libraries))

    def load(self, runtime: Runtime, kv_type: str | None = None) -> None:
        if kv_type is not None:
            runtime = replace(runtime, type_k=kv_type, type_v=kv_type, flash_attn=True)
        settings = self._settings(runtime)
        known = self._known.probed.get(settings)
        share = self._share and known is not None and known.invariant
        self._call("load", *self._load(settings), share)

    def ends(self) -> frozenset[int]:
        return frozenset(unpack(encoding.bytes_(self._call("ends", *self._words()), "end tokens")))

    def prompt_ids(self, request: Request, opened: int | None = None) -> list[int]:
        return unpack(encoding.bytes_(self._call("prompt", *self._words(), request.canonical, opened), "prompt ids"))

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        unique = sorted(set(ids))
        pieces = encoding.array(self._call("pieces", *self._words(), pack(unique)), len(unique), "pieces")
        table = {
            token: encoding.bytes_(piece, "piece", maximum=1 << 16) for token, piece in zip(unique, pieces, strict=True)
        }
        return [table[token] for token in ids]

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        """As in `Reexecutor`."""
        return self._score(prompt, tokens, k, as_generated, None, 0)[0]

    def score_processed(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        k: int,
        params: SamplingParams,
        constraint: bytes,
        *,
        as_generated: bool = False,
        skip: int = 0,
    ) -> tuple[list[Entries], list[bytes]]:
        """As in `Reexecutor`."""
        return self._score(prompt, tokens, k, as_generated, [params.to_cbor(), constraint], skip)

    def masks(
        self, tokens: Sequence[int], ids: Sequence[Ids], params: SamplingParams, constraint: bytes
    ) -> list[bytes]:
        """As in `Reexecutor`."""
        named: list[Value] = [each.astype("<u4", copy=False).tobytes() for each in ids]
        answer = self._call("masks", *self._words(), pack(tokens), named, [params.to_cbor(), constraint])
        given = encoding.array(answer, len(tokens), "masks")
        return [encoding.bytes_(mask, "mask", len(each)) for mask, each in zip(given, ids, strict=True)]

    def _score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, as_generated: bool, processing: Value, skip: int
    ) -> tuple[list[Entries], list[bytes]]:
        entries: list[Entries] = []
        masks: list[bytes] = []
        width, count = 4 * k, len(tokens) - skip

        def hear(message: list[Value]) -> None:
            ids, logits, mask = (encoding.bytes_(part, "rows") for part in encoding.array(message, 4, "rows")[1:])
            if len(ids) % width or len(ids) != len(logits) or len(mask) not in (0, len(ids) // 4):  # none in the prompt
                raise self._child.crash("its records", f"rows of {width} bytes, found {len(ids)} and {len(logits)}")
            for at in range(0, len(ids), width):
                entries.append(Entries.from_bytes(ids[at : at + width], logits[at : at + width]))
            masks.extend(mask[at : at + k] for at in range(0, len(mask), k))
            self._report("tokens", len(entries), count)

        if count > 0:
            reused = self._call("score", pack(prompt), pack(tokens), k, as_generated, processing, skip, hear=hear)
            self.reused += encoding.uint(reused, "tokens reused", len(prompt) + skip)
        if len(entries) != count:
            raise self._child.crash("its records", f"{count} rows, found {len(entries)}")
        return entries, masks

    def converse(self, requests: Sequence[Request], n_ctx: int, rope: Rope = MODELS_OWN) -> list[Conversation]:
        """Generate an answer to each request under batch-invariant settings, in their order, each a draw of its nonce.

        What `load` loaded is gone then.
        """
        settings = RuntimeSettings(n_ctx=n_ctx, n_seq_max=AT_ONCE, n_threads=self._threads, rope=rope)
        conversations: list[Conversation] = []

        def hear(message: list[Value]) -> None:
            _, prompt, answer = encoding.array(message, 3, "conversation")
            conversations.append(
                Conversation(*(tuple(unpack(encoding.bytes_(part, "ids"))) for part in (prompt, answer)))
            )

        self._call("converse", *self._load(settings), [request.canonical for request in requests], hear=hear)
        if len(conversations) != len(requests):
            raise self._child.crash("its answers", f"{len(requests)} of them, found {len(conversations)}")
        return conversations

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settings(self, runtime: Runtime) -> RuntimeSettings:
        rows = min(runtime.n_batch, ROWS)
        runtime = replace(runtime, n_batch=rows, n_ubatch=min(runtime.n_ubatch, rows))
        return settings_of(runtime, n_threads=self._threads)

    def _files(self) -> list[Value]:
        return [self.path, adapters_to_cbor(self._adapters)]

    def _words(self) -> list[Value]:
        """What a command begins with that needs the model's vocabulary alone."""
        if self.pid is None or self._tiled is None:
            self._tiled = False
        return [self.path, self._tiled, self._threads == 1]

    def _load(self, settings: RuntimeSettings) -> list[Value]:
        """What a command that loads the model begins with, for a process that can have these settings."""
        if self.pid is not None and self._tiled not in (None, settings.tiled):
            self.close()  # llama.cpp reads this setting once per process, so another value needs another process
        self._tiled = settings.tiled
        return [*self._files(), dict(as_dict(settings).items())]

    def _call(self, name: str, *arguments: Value, hear: Callable[[list[Value]], None] | None = None) -> Value:
        """The result of a command; `hear` gets what its process says before, except how far it is."""

        def each(message: list[Value]) -> None:
            if message[0] == "progress":
                _, stage, done, total = encoding.array(message, 4, "progress")
                self._report(encoding.text(stage, "stage", 32), encoding.uint(done, "done"), encoding.uint(total, "of"))
            elif hear is not None:
                hear(message)

        return self._child.call([name, *arguments], each)

    def _report(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)
