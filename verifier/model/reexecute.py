"""Re-execution: the auditor's handle on the process that runs the model.

Every call either returns a checked value or raises one of our errors. A crash or a hang of the process is a
VerificationError with code `auditor-crashed`; the next call starts a new process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from verifiable.errors import EngineError, MalformedError, PolicyError, VerifiableError, VerificationError
from verifiable.llama.gguf.lora import Adapter, adapters_to_cbor
from verifiable.manifest.manifest import ModelIdentity, Runtime
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams
from verifiable.wire import encoding
from verifiable.wire.encoding import Value
from verifiable.wire.ids import pack, unpack
from verifier.model.pipe import ClosedError, Reader, StalledError, write

STALL = 900.0
"""Seconds without a word from the process after which it counts as hung. A chunk of rows must take less."""
ROWS = 512
"""Most rows of one decode. Under invariant settings any number gives the same bits, whatever the manifest says."""

Progress = Callable[[str, int, int], None]
"""Called with a stage (`hashing`, `probing`, `loading`, `tokens`), what is done of it and its total."""

_KINDS: dict[str, type[VerifiableError]] = {
    "MalformedError": MalformedError,
    "PolicyError": PolicyError,
    "EngineError": EngineError,
}
_SETTINGS = (
    "n_ctx",
    "n_seq_max",
    "n_batch",
    "n_ubatch",
    "type_k",
    "type_v",
    "flash_attn",
    "kv_unified",
    "repack",
    "tiled",
    "swa_full",
    "pairs",
    "n_threads",
    "n_gpu_layers",
    "device",
    "rope",
)
"""The fields of verifiable.llama's RuntimeSettings in their order; that package is for the worker alone to import."""


_MINE = ("n_seq_max", "n_threads")
"""Settings that a manifest leaves to whoever runs the model."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What the numerics probe says of the model on this machine under a manifest's settings."""

    invariant: bool
    fingerprint: bytes
    build: tuple[str, ...]


@dataclass(slots=True)
class _Known:
    """What the processes of one file know of it; the lock is held while one of them finds out."""

    identity: ModelIdentity | None = None
    probed: dict[bytes, Probed] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class Reexecutor(Protocol):
    """What an audit needs of a model: `Worker` is one in a process of this machine; another may be far away.

    Every method may raise a VerificationError with code `auditor-crashed`, or an EngineError.
    """

    def identity(self) -> ModelIdentity:
        """Hashes and counts of the model file."""
        ...

    def probe(self, runtime: Runtime) -> Probed:
        """What the numerics probe finds here under the manifest's settings."""
        ...

    def load(self, runtime: Runtime, kv_type: str | None = None) -> tuple[int, frozenset[int]]:
        """Load the model under the manifest's settings, or with another type of KV cache.

        Returns the size of the vocabulary and the ids that end a generation.
        """
        ...

    def prompt_ids(self, request: Request, opened: int | None = None) -> list[int]:
        """The ids that the request means to this model, in a session that was opened then (milliseconds since 1970).

        Raises PolicyError where the model refuses it.
        """
        ...

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes that each id stands for in a text."""
        ...

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        """The record's entries of each token, recomputed: the k best of the row that it was drawn from.

        With `as_generated` the tokens after the prompt are evaluated one at a time instead of in large chunks.
        """
        ...


class Worker:
    """A model on this machine, in a process of its own. Use it in a `with` statement, or close it.

    Implements `Reexecutor`. What is asked for before `load` comes from the model as it was last loaded.

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
        self._adapters = adapters_to_cbor(adapters)
        self.progress = progress
        self._threads = threads
        self._cache = os.path.abspath(fspath(cache)) if cache else None if cache is None else ""
        self._stall = stall
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: Reader | None = None
        self._errors: IO[bytes] | None = None
        self._tiled: bool | None = None
        self.reused = 0
        self._share = share
        self._known = _Known()

    def twin(self) -> Worker:
        """Another process for the same file, to work beside this one. What one of them learns of it both know."""
        made = Worker(self.path, threads=self._threads, cache=self._cache, stall=self._stall, share=self._share)
        made._adapters = self._adapters
        made._known = self._known
        return made

    def identity(self) -> ModelIdentity:
        """As in `Reexecutor`; read once."""
        with self._known.lock:
            if self._known.identity is None:
                self._known.identity = ModelIdentity.from_cbor(self._call("identify", self.path, self._adapters))
            return self._known.identity

    def probe(self, runtime: Runtime) -> Probed:
        """As in `Reexecutor`; made once for each settings."""
        settings = self._settings(runtime)
        key = encoding.encode(settings)
        with self._known.lock:
            if key in self._known.probed:
                return self._known.probed[key]
            self._use(runtime.tiled)
            items = encoding.array(self._call("probe", self.path, self._adapters, settings, self._cache), 3, "probe")
            build = tuple(encoding.text(part, "build", 8192) for part in encoding.array(items[2], None, "build"))
            self._known.probed[key] = Probed(
                encoding.boolean(items[0], "invariant"), encoding.bytes_(items[1], "fingerprint", 32), build
            )
            return self._known.probed[key]

    def load(self, runtime: Runtime, kv_type: str | None = None) -> tuple[int, frozenset[int]]:
        self._use(runtime.tiled)
        settings = self._settings(runtime, kv_type)
        known = self._known.probed.get(encoding.encode(settings))
        share = self._share and known is not None and known.invariant
        items = encoding.array(self._call("load", self.path, self._adapters, settings, share), 2, "model facts")
        return encoding.uint(items[0], "vocabulary"), frozenset(unpack(encoding.bytes_(items[1], "end tokens")))

    def prompt_ids(self, request: Request, opened: int | None = None) -> list[int]:
        return unpack(encoding.bytes_(self._call("prompt", request.canonical, opened), "prompt ids"))

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        unique = sorted(set(ids))
        found = encoding.array(self._call("pieces", pack(unique)), len(unique), "pieces")
        table = {
            token: encoding.bytes_(piece, "piece", maximum=1 << 16) for token, piece in zip(unique, found, strict=True)
        }
        return [table[token] for token in ids]

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        """As in `Reexecutor`."""
        return self._score(prompt, tokens, k, as_generated, None)[0]

    def score_processed(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        k: int,
        params: SamplingParams,
        constraint: bytes,
        *,
        as_generated: bool = False,
    ) -> tuple[list[Entries], list[bytes]]:
        """As in `verifier.model.processing.ProcessingReexecutor`."""
        return self._score(prompt, tokens, k, as_generated, [params.to_cbor(), constraint])

    def _score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, as_generated: bool, how: Value
    ) -> tuple[list[Entries], list[bytes]]:
        found: list[Entries] = []
        masks: list[bytes] = []
        if not tokens:
            return found, masks
        for message in self._exchange("score", pack(prompt), pack(tokens), k, as_generated, how):
            if message[0] == "done":
                self.reused += encoding.uint(message[1], "tokens reused", len(prompt))
                continue
            ids, logits, mask = (encoding.bytes_(part, "rows") for part in message[1:4])
            width = 4 * k
            if len(ids) % width or len(ids) != len(logits) or len(mask) not in (0, len(ids) // 4):  # none in the prompt
                raise self._crash("its records", f"rows of {width} bytes, found {len(ids)} and {len(logits)}")
            for at in range(0, len(ids), width):
                found.append(Entries.from_bytes(ids[at : at + width], logits[at : at + width]))
            masks += [mask[at : at + k] for at in range(0, len(mask), k)]
            self._report("tokens", len(found), len(tokens))
        if len(found) != len(tokens):
            raise self._crash("its records", f"{len(tokens)} rows, found {len(found)}")
        return found, masks

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for file in (process.stdin, self._errors):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        if self._reader is not None:
            self._reader.close()
        self._tiled = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settings(self, runtime: Runtime, kv_type: str | None = None) -> list[Value]:
        rows = min(runtime.n_batch, ROWS)
        values: dict[str, Any] = {name: getattr(runtime, name) for name in _SETTINGS if name not in _MINE}
        values |= {"n_seq_max": 1, "n_threads": self._threads, "n_batch": rows, "n_ubatch": min(runtime.n_ubatch, rows)}
        values["rope"] = runtime.rope.to_cbor()
        if kv_type is not None:
            values |= {"type_k": kv_type, "type_v": kv_type, "flash_attn": True}
        return [values[name] for name in _SETTINGS]

    def _use(self, tiled: bool) -> None:
        """llama.cpp reads this setting once per process, so another value needs another process."""
        if self._process is not None and self._tiled not in (None, tiled):
            self.close()
        self._start()
        self._tiled = tiled

    def _start(self) -> tuple[subprocess.Popen[bytes], Reader]:
        if self._process is None or self._reader is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
            root = str(Path(__file__).resolve().parents[2])
            paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "verifier.model.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the parent, who ends the process
            )
            if self._process.stdout is None:
                raise EngineError("the worker process has no standard output")
            self._reader = Reader(os.dup(self._process.stdout.fileno()), self._stall)
            self._process.stdout.close()
        return self._process, self._reader

    def _call(self, name: str, *arguments: Value) -> Value:
        result: Value = None
        for message in self._exchange(name, *arguments):
            if message[0] == "done":
                result = message[1]
        return result

    def _exchange(self, name: str, *arguments: Value) -> Iterator[list[Value]]:
        """Send a command and yield its messages up to "done". Whatever goes wrong on the way ends the process."""
        process, reader = self._start()
        finished = False
        try:
            if process.stdin is None:
                raise EngineError("the worker process has no standard input")
            write(process.stdin, [name, *arguments])
            while not finished:
                message = reader.read()
                finished = message[0] in ("done", "error")
                if message[0] == "error":
                    raise _error(message)
                if message[0] == "progress":
                    self._report(str(message[1]), int(str(message[2])), int(str(message[3])))
                else:
                    yield message
        except StalledError:
            raise self._crash("the worker process hangs", f"a sign of life within {self._stall:g} s") from None
        except (ClosedError, OSError):
            raise self._crash("the worker process ended", "an answer") from None
        except (IndexError, ValueError):
            raise self._crash("the worker process", "a well-formed answer") from None
        finally:
            if not finished:
                self.close()

    def _report(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)

    def _crash(self, what: str, expected: str) -> VerificationError:
        """The error for a process that is of no more use, with the last words of its standard error."""
        words, status = "", None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(0.5)
        if self._errors is not None and not self._errors.closed:
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(self._errors.tell() - 2000, 0))
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        self.close()
        ending = "no exit" if status is None else f"signal {-status}" if status < 0 else f"exit status {status}"
        return VerificationError(
            f"the auditor could not run the model: {what}",
            code="auditor-crashed",
            expected=expected,
            found=f"{ending}; {words[:300]}" if words else ending,
            hint="This says nothing about the provider. Check the model file and this machine's memory.",
        )


def _error(message: list[Value]) -> VerifiableError:
    kind = _KINDS.get(str(message[1]), EngineError)
    what, expected, found, hint = (None if value is None else str(value) for value in message[2:6])
    if kind is MalformedError:  # what the worker parses itself is the auditor's own model file
        return VerificationError(
            f"the auditor's model file is not usable: {what}",
            code="auditor-crashed",
            expected=expected,
            found=found,
            hint=hint,
        )
    return kind(str(what), expected=expected, found=found, hint=hint)
