"""The witness: a file of memory for each log, replaced by compare-and-swap before a cosignature leaves; and HTTP."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.log.checkpoint_file import CheckpointFile
from verifiable.errors import PolicyError, StoreError, VerifiableError, VerificationError
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.cosignature import cosign, witness_key
from verifiable.tlog.witness import AddCheckpoint, Cosigned, conflict_body, consider, status
from verifiable.wire.bodies import join_parts
from verifiable.wire.keys import PrivateKey, PublicKey

MAX_BODY = 1 << 20
SIZE_TYPE = "text/x.tlog.size"


class Witness:
    """Cosigns for some logs; several keys of one name are those of one log, which exchanged its key. `folder` holds
    what it cosigned last of each; back it up never, lose it never.

    Raises PolicyError where its key is also a log's: one key must not speak for both.
    """

    def __init__(
        self, key: PrivateKey, logs: Iterable[PublicKey], folder: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self.key = key
        self.logs: dict[str, tuple[PublicKey, ...]] = {}
        for log in logs:
            self.logs[log.name] = (*self.logs.get(log.name, ()), log)
        if any(log.raw == key.public.raw for keys in self.logs.values() for log in keys):
            raise PolicyError("the witness's key is a log's key too", hint="Give the witness a key of its own.")
        self._folder = folder
        self._clock = clock

    @property
    def vkey(self) -> str:
        """The verifier key to give to logs and to those who trust this witness."""
        return witness_key(self.key.public).vkey()

    def seen(self, origin: str) -> Cosigned:
        """What was cosigned last of a log. Raises StoreError where the file is damaged."""
        note = self._file(origin).read()
        return Cosigned() if note is None else self._parse(origin, note)

    def add_checkpoint(self, body: bytes) -> bytes:
        """The cosignature line for a request. Raises what `verifiable.tlog.witness.consider` raises, or StoreError."""
        request = AddCheckpoint.parse(body)
        # The memory of the log that the request claims to be of; `consider` checks that claim.
        remembered = {origin: (file := self._file(origin), file.read()) for origin in self.logs}
        seen = {origin: self._parse(origin, note) for origin, (_, note) in remembered.items() if note is not None}
        head = consider(request, self.logs, seen)
        file, old = remembered[head.origin]
        signature = cosign(head.text(), self.key, int(self._clock()))
        try:
            file.replace(old, request.checkpoint)
        except StoreError as error:
            now = self.seen(head.origin)
            if now.size == seen.get(head.origin, Cosigned()).size:
                raise
            raise VerificationError(
                "another request was faster", code="stale-size", expected=now.size, found=request.old_size
            ) from error
        return signature.line().encode()

    def _parse(self, origin: str, note: bytes) -> Cosigned:
        try:
            head = open_checkpoint(note, self.logs[origin]).checkpoint
        except VerifiableError as error:
            raise StoreError(f"what this witness remembers of {origin} is damaged: {error}") from error
        return Cosigned(head.size, head.root)

    def _file(self, origin: str) -> CheckpointFile:
        return CheckpointFile(self._folder / hashlib.sha256(origin.encode()).hexdigest())


def make_app(witness: Witness) -> Starlette:
    """The witness over HTTP: POST /add-checkpoint."""

    async def add_checkpoint(request: Request) -> Response:
        body = await join_parts(request.stream(), MAX_BODY)
        if body is None:
            return Response("the request is too long\n", 413)
        try:
            line = await run_in_threadpool(witness.add_checkpoint, body)
        except StoreError as error:
            return Response(f"the witness can't remember: {error.what}\n", 500, media_type="text/plain")
        except VerifiableError as error:
            if error.code == "stale-size":
                return Response(conflict_body(error), 409, {"Content-Type": SIZE_TYPE})
            return Response(f"{error}\n", status(error), media_type="text/plain")
        return Response(line, 200, media_type="text/plain; charset=utf-8")

    async def about(request: Request) -> Response:
        return Response(f"{witness.vkey}\n", media_type="text/plain; charset=utf-8")

    return Starlette(routes=[Route("/add-checkpoint", add_checkpoint, methods=["POST"]), Route("/", about)])
