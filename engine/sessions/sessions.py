"""Which sessions exist, who may continue one, and one turn at a time in each."""

from __future__ import annotations

import hmac
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

from engine.sessions.dates import Dates
from engine.sessions.manifests import Clock, Manifests, Signed, other_manifest
from engine.sessions.recorder import BusySessionError, SessionRecorder
from engine.store import SessionRow, Store
from verifiable.errors import EngineError, PolicyError
from verifiable.manifest.manifest import Manifest
from verifiable.request.request import Request
from verifiable.session import records
from verifiable.session.log import SessionLog
from verifiable.session.receipt import CAPABILITY_BYTES, reader_capability
from verifiable.wire.keys import PrivateKey
from verifiable.wire.text import from_hex

_KEPT = 256
"""Open sessions whose log is kept in memory; older ones are rebuilt from the store when they are continued."""


class UnknownSessionError(PolicyError):
    """No such session, or not for this caller: both answer alike."""


@dataclass(slots=True)
class _Live:
    row: SessionRow
    log: SessionLog
    manifest: Signed
    busy: bool = False


class Sessions:
    """Opens sessions under the manifest in force, and continues them. Safe to call from any thread."""

    def __init__(self, store: Store, manifests: Manifests, clock: Clock, ticks: Clock | None = None) -> None:
        self._store = store
        self._manifests = manifests
        self._clock = clock
        self.dates = Dates(store, clock, ticks)
        self._lock = threading.Lock()
        self._live: OrderedDict[bytes, _Live] = OrderedDict()

    def recorder(self, request: Request, capability: bytes | None) -> SessionRecorder:
        """The recorder for one more turn: of the session that the request names, or of a new one. Begin or abandon it.

        Raises UnknownSessionError, OtherManifestError where the request pins one that it can't be answered under, or
        BusySessionError where the session is closed, interrupted or in a turn, or where another turn than the one that
        the client expects would be next. Raises ClockError where the clock can't be right.
        """
        self.dates.check()
        continued = request.session not in (None, "new")
        with self._lock:
            if continued:
                live = self._continue(bytes.fromhex(request.session or ""), capability, request.manifest)
            else:
                live = self._new(self._manifests.pinned(request.manifest))
            if request.turn not in (None, live.log.turns):
                hint = "The answer before said the next turn: a request may have been answered that you do not know of."
                raise _busy(f"its next turn is {live.log.turns}", hint, "verifiable.turn")
            key = self._manifests.session_key(live.manifest.manifest)
            if key is None:
                raise _busy("the key of its manifest is not in use any more", "Open a new session.")
            live.busy = True
        return SessionRecorder(
            live.row,
            live.log,
            request,
            keep_open=request.session is not None,
            manifest=live.manifest,
            key=key,
            store=self._store,
            dates=self.dates,
            release=lambda: self._release(live),
        )

    def read(self, session: str, capability: bytes | None, auditor: bool) -> SessionRow:
        """The session's row, for a caller who may read it. Raises UnknownSessionError."""
        row = self._find(session)
        reader = readers(row, capability) is not None
        if row is None or not (reader or auditor):
            raise UnknownSessionError(
                "no such session, or not readable with this capability",
                hint="Send the capability of the session's receipt in X-Verifiable-Capability, or an auditor key.",
            )
        return row

    def erase(self, session: str, capability: bytes | None) -> None:
        """Erase a session's content for good, at the wish of whoever holds its owner's capability.

        Raises UnknownSessionError, or BusySessionError while a turn of it is being generated.
        """
        row = _owned(self._find(session), capability)
        with self._lock:
            live = self._live.get(row.session)
            if live is not None and live.busy:
                raise _busy("a turn of it is being generated", "Erase it when the answer is complete.")
            self._live.pop(row.session, None)
            self._store.flush()
            if row.erased is None:
                self._store.erase(row, self._clock())

    def recover(self) -> int:
        """Sign what a crash left behind: a head over every stored leaf, so that the break can be shown. Counts
        sessions. Where a session's manifest is over by now, or the clock is not right, the heads that were signed in
        time have to do.
        """
        count = 0
        for session in self._store.unsigned():
            row = self._store.session(session)
            leaves = [records.parse(leaf) for leaf in self._store.leaves(session)]
            if row is None or not leaves:
                continue
            time = max(self._clock(), row.opened)
            key = self._may_sign(row.manifest_digest, time)
            if key is None or not self.dates.keeps_order(time):
                continue
            log = SessionLog.restore(row.secret, leaves)
            self._store.add_head(session, log.size, log.head(time).sign(key))
            count += 1
        if count:
            self._store.flush()
        return count

    def _find(self, session: str) -> SessionRow | None:
        identifier = from_hex(session, records.SESSION_ID_BYTES)
        return None if identifier is None else self._store.session(identifier)

    def _may_sign(self, digest: bytes, time: int) -> PrivateKey | None:
        """The key by which a head of that time, under that manifest, would be believed."""
        envelope = self._store.manifest(digest)
        if envelope is None:
            return None
        manifest = Manifest.peek(envelope)
        valid = manifest.valid_from <= time <= manifest.valid_to
        return self._manifests.session_key(manifest) if valid else None

    def _new(self, manifest: Signed) -> _Live:
        row = SessionRow(
            session=os.urandom(records.SESSION_ID_BYTES),
            secret=os.urandom(records.SECRET_BYTES),
            capability=os.urandom(CAPABILITY_BYTES),
            manifest_digest=manifest.digest,
            opened=self._clock(),
        )
        return _Live(row, SessionLog(row.session, row.secret, row.manifest_digest), manifest)

    def _continue(self, session: bytes, capability: bytes | None, pinned: bytes | None) -> _Live:
        live = self._live.get(session)
        row = _owned(live.row if live else self._store.session(session), capability)
        manifest = self._manifests.going_on(row.manifest_digest)
        if manifest is None:
            raise _busy(
                "it was opened under another manifest, or one that is nearly over, or by a key that is gone",
                "Open a new session.",
            )
        if pinned not in (None, manifest.digest):
            raise other_manifest(manifest, pinned or b"")
        if live is None:
            live = self._restore(row, manifest)
        if live.busy:
            raise _busy("another turn of it is being generated", "Send the turns of a session one after another.")
        if live.log.closed:
            raise _busy("it is closed", 'Open sessions with {"verifiable": {"session": "new"}} to continue them.')
        self._live[session] = live  # from now on: a second turn at the same time must find it busy, not restore it too
        return live

    def _restore(self, row: SessionRow, manifest: Signed) -> _Live:
        if row.erased is not None or row.dropped is not None:
            raise _busy("its content is no longer kept", "Open a new session.")
        try:
            log = SessionLog.resume(row.secret, [records.parse(leaf) for leaf in self._store.leaves(row.session)])
        except EngineError as error:
            raise _busy("it was interrupted in mid-turn", "Open a new session.") from error
        log.requests = sum(map(len, self._store.requests(row.session).values()))
        return _Live(row, log, manifest)

    def _release(self, live: _Live) -> None:
        with self._lock:
            live.busy = False
            if live.log.closed or not live.log.size:  # over, or never begun
                self._live.pop(live.row.session, None)
                return
            self._live[live.row.session] = live
            self._live.move_to_end(live.row.session)
            while len(self._live) > _KEPT:
                oldest = next((key for key, value in self._live.items() if not value.busy), None)
                if oldest is None:
                    return
                del self._live[oldest]


def readers(row: SessionRow | None, shown: bytes | None) -> bytes | None:
    """The reader's capability, for a caller who has shown it or the owner's. Others get none, an auditor neither."""
    owner = row.capability if row else bytes(CAPABILITY_BYTES)
    reader = reader_capability(owner)
    # Both comparisons are made, and for an unknown session too, so that the time taken tells nothing.
    matches = [hmac.compare_digest(held, shown or b"") for held in (owner, reader)]
    return reader if row is not None and any(matches) else None


def _owned(row: SessionRow | None, shown: bytes | None) -> SessionRow:
    owner = row.capability if row else bytes(CAPABILITY_BYTES)
    matches = hmac.compare_digest(owner, shown or b"")
    if row is None or not matches:
        raise UnknownSessionError(
            "no such session, or not yours with this capability",
            hint="Send its owner's in X-Verifiable-Capability: answers in the session say it, a receipt's only reads.",
        )
    return row


def _busy(why: str, hint: str, parameter: str = "verifiable.session") -> BusySessionError:
    return BusySessionError("the session can't take this turn", found=why, hint=hint, parameter=parameter)
