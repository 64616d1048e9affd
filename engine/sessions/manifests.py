"""The manifests that a provider signed: the one in force, renewed while it serves, and those that sessions go on under.

Every time that is signed lies within the validity of its manifest, whatever the clock does: a manifest begins before it
is signed by as much as clocks may differ, a new one takes its place when half of it is over or the clock is before it,
and no turn begins that might outlast the manifest of its session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.store import Store
from verifiable import limits
from verifiable.errors import MalformedError, PolicyError, VerificationError
from verifiable.manifest.manifest import Manifest, verify_manifest
from verifiable.tlog.entry import MANIFEST
from verifiable.wire.keys import PrivateKey

Clock = Callable[[], int]
"""Milliseconds since 1970 (UTC)."""
_LONGEST = 86_400_000
"""Milliseconds that a manifest must still be valid for when a turn begins under it, or a quarter of its validity."""


class OtherManifestError(PolicyError):
    """The client wants an answer under another manifest, or none."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A manifest, its envelope and its digest."""

    manifest: Manifest
    envelope: bytes
    digest: bytes

    def covers(self, time: int, more: int = 0) -> bool:
        """Whether a time, and `more` milliseconds after it, lie within its validity."""
        return self.manifest.valid_from <= time and time + more <= self.manifest.valid_to


class Manifests:
    """What this provider states, under changing dates. Safe to call from any thread.

    `stated` is what a manifest says; its validity is as long as that of `stated`. The newest in the store is kept where
    it says the same and is not half over. Raises PolicyError where nobody could read it.
    """

    def __init__(self, store: Store, key: PrivateKey, stated: Manifest, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._stated = stated
        self._validity = stated.valid_to - stated.valid_from
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[bytes, Signed] = {}
        newest = next(iter(store.manifests()), None)
        before = None if newest is None else self._of(newest)
        if before is not None and self._is_fresh(before):
            store.add_statement(MANIFEST, before.envelope)  # again: a crash may have come between
            self._newest = before
        else:
            self._newest = self._sign()

    def in_force(self) -> Signed:
        """The manifest that new sessions are opened under. Raises StoreError where a new one can't be kept."""
        with self._lock:
            if not self._is_fresh(self._newest):
                self._newest = self._sign()
            return self._newest

    def pinned(self, digest: bytes | None) -> Signed:
        """The manifest for a request that pins one, or none: that in force, or one that differs from it in dates alone.

        Raises OtherManifestError, StoreError.
        """
        current = self.in_force()
        found = current if digest in (None, current.digest) else self.going_on(digest or b"")
        if found is None:
            raise other_manifest(current, digest or b"")
        return found

    def going_on(self, digest: bytes) -> Signed | None:
        """The manifest of that digest, where one more turn may be answered under it: it says what is in force, and is
        valid for long enough.
        """
        with self._lock:
            found = self._known.get(digest)
            if found is None and (envelope := self._store.manifest(digest)) is not None:
                found = self._of(envelope)
            if found is None or not found.covers(self._clock(), min(_LONGEST, self._validity // 4)):
                return None
            self._known[digest] = found
            return found

    def _is_fresh(self, signed: Signed) -> bool:
        return signed.covers(self._clock(), self._validity // 2)

    def _of(self, envelope: bytes) -> Signed | None:
        """A stored manifest that says what is stated now; None for another, or under another key."""
        try:
            found = verify_manifest(envelope, [self._key.public])
        except (VerificationError, MalformedError):
            return None
        now = replace(self._stated, valid_from=found.valid_from, valid_to=found.valid_to)
        return Signed(found, envelope, found.digest()) if found == now else None

    def _sign(self) -> Signed:
        start = self._clock() - limits.CLOCK_SKEW
        manifest = replace(self._stated, valid_from=start, valid_to=start + limits.CLOCK_SKEW + self._validity)
        made = Signed(manifest, sign_manifest(manifest, self._key), manifest.digest())
        self._store.add_manifest(made.digest, made.envelope)
        self._store.flush()
        self._store.add_statement(MANIFEST, made.envelope)
        self._known[made.digest] = made
        return made


def other_manifest(served: Signed, pinned: bytes) -> OtherManifestError:
    """What to say to a client that pins another manifest than the one that it can be served under."""
    return OtherManifestError(
        "the request pins another manifest than the one that is served",
        expected=served.digest.hex(),
        found=pinned.hex(),
        hint="Fetch /v1/manifest, check it, and pin the one that you agree to.",
        parameter="verifiable.manifest",
    )


def sign_manifest(manifest: Manifest, key: PrivateKey) -> bytes:
    """The manifest, signed. Raises PolicyError where a name or a list in it is longer than a reader takes."""
    try:
        Manifest.parse(manifest.payload())
    except MalformedError as error:
        raise PolicyError("a manifest that nobody could read", found=str(error)) from error
    return manifest.sign(key)
