"""The manifests that a provider signed: the one in force, renewed while it serves, and those that sessions go on under.

Every time that is signed lies within the validity of its manifest, whatever the clock does: a manifest begins before it
is signed by as much as clocks may differ, a new one takes its place when half of it is over or the clock is before it,
and no turn begins that might outlast the manifest of its session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.keys import request
from engine.keys.keyring import Keyring
from engine.store import Store
from verifiable import limits
from verifiable.errors import EngineError, MalformedError, PolicyError, VerificationError
from verifiable.manifest.manifest import Manifest, open_manifest
from verifiable.tlog.entry import MANIFEST
from verifiable.wire.keys import PrivateKey, PublicKey

log = logging.getLogger(__name__)

Clock = Callable[[], int]
"""Milliseconds since 1970 (UTC)."""


class OtherManifestError(PolicyError):
    """The client wants an answer under another manifest, or none."""


class NoManifestError(EngineError):
    """The provider's key is elsewhere, and no manifest that it signed can be served under."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Signed:
    """A manifest, its envelope, its digest, and the provider key that signed it."""

    manifest: Manifest
    envelope: bytes
    digest: bytes
    signer: PublicKey

    @property
    def validity(self) -> int:
        """Milliseconds."""
        return self.manifest.valid_to - self.manifest.valid_from

    def lasts(self, time: int) -> bool:
        """Whether a turn may begin under it at a time."""
        return self.covers(time, request.margin(self.validity))

    def covers(self, time: int, more: int = 0) -> bool:
        """Whether a time, and `more` milliseconds after it, lie within its validity."""
        return self.manifest.valid_from <= time and time + more <= self.manifest.valid_to


class Manifests:
    """What this provider states, under changing dates. Safe to call from any thread.

    `stated` is what a manifest says, but for the keys, which are those of `keys`; its validity is as long as that of
    `stated`. The newest in the store is kept where it says the same and is not half over. Where the provider's private
    key is elsewhere, the installed manifests take its place.

    Raises PolicyError where nobody could read it, and NoManifestError where none that was installed fits.
    """

    def __init__(self, store: Store, keys: Keyring, stated: Manifest, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[bytes, Signed] = {}
        self._read: dict[bytes, Signed | None] = {}
        self._validity = stated.valid_to - stated.valid_from
        self._keys, self._stated = keys, stated
        self._set(keys)
        newest = next(iter(store.manifests()), None)
        before = None if newest is None else self._of(newest)
        if before is not None and self._is_fresh(before):
            self._say(before)  # again: a crash may have come between
            self._newest = before
        else:
            self._newest = self._next()

    def use(self, keys: Keyring) -> None:
        """Go on with other keys or installed manifests. Raises as the constructor; asked again, it tries again."""
        with self._lock:
            self._set(keys)
            self._known.clear()
            self._read.clear()
            if not self._is_fresh(self._newest):
                self._newest = self._next()
            if not self._is_fresh(self._newest):
                log.warning("answers go on under a manifest by the key before: %s", self._none())

    def in_force(self) -> Signed:
        """The manifest that new sessions are opened under. Raises StoreError where a new one can't be kept, and
        NoManifestError where none fits."""
        with self._lock:
            if not self._is_fresh(self._newest) or self._is_ending(self._newest):
                self._newest = self._next()
            return self._newest

    def session_key(self, manifest: Manifest) -> PrivateKey | None:
        """The key that signs heads under a manifest; None where it is not here any more, or revoked."""
        return self._keys.of(manifest.session_keys)

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
            if found is None or not self._may_go_on(found):
                return None
            self._known[digest] = found
            return found

    def _set(self, keys: Keyring) -> None:
        self._keys = keys
        self._stated = replace(self._stated, session_keys=(keys.session.public,), log=keys.log.public)
        if not isinstance(keys.provider, PrivateKey):
            session, log = keys.coming
            asked = replace(self._stated, valid_from=0, valid_to=self._validity, session_keys=(session,), log=log)
            request.ask(keys.folder, asked)

    def _may_go_on(self, signed: Signed) -> bool:
        here = self.session_key(signed.manifest) is not None
        return here and self._keys.counts(signed.signer) and signed.lasts(self._clock())

    def _is_fresh(self, signed: Signed) -> bool:
        """Whether a manifest is one to open sessions under: by the keys in use, half of it or a turn's time left."""
        keys, found = self._keys, signed.manifest
        current = (signed.signer, found.session_keys, found.log) == (
            keys.provider.public,
            self._stated.session_keys,
            self._stated.log,
        )
        if not current or not self._may_go_on(signed):
            return False
        return not isinstance(keys.provider, PrivateKey) or signed.covers(self._clock(), self._validity // 2)

    def _is_ending(self, signed: Signed) -> bool:
        """Whether the next of the installed manifests has begun, if there is one."""
        elsewhere = not isinstance(self._keys.provider, PrivateKey)
        return elsewhere and not signed.covers(self._clock(), request.overlap(signed.validity))

    def _of(self, envelope: bytes) -> Signed | None:
        """A manifest of this provider that says what is stated now but for keys and dates; None for another."""
        try:
            found, signer = open_manifest(envelope, self._keys.providers)
        except (VerificationError, MalformedError):
            return None
        same = not set(request.differences(self._stated, found)) - {"session keys", "log"}
        return Signed(found, envelope, found.digest(), signer) if same else None

    def _next(self) -> Signed:
        if isinstance(self._keys.provider, PrivateKey):
            return self._sign(self._keys.provider)
        for envelope in self._keys.installed:
            if envelope not in self._read:
                self._read[envelope] = self._of(envelope)
        read = [signed for envelope in self._keys.installed if (signed := self._read[envelope]) is not None]
        # What a key signed before another one followed it serves on until that one has signed.
        fitting = [*filter(self._is_fresh, read)] or [*filter(self._may_go_on, read)]
        if not fitting:
            raise self._none()
        taken = max(fitting, key=lambda signed: signed.manifest.valid_from)
        return taken if taken.digest in self._known else self._keep(taken)

    def _none(self) -> NoManifestError:
        keys = self._keys
        data, asked = keys.folder.parent, keys.folder / "manifest.request"
        return NoManifestError(
            "no manifest that the provider's key signed can be served under",
            expected=f"one by {keys.provider.public.label} that says what {asked} says",
            found=request.why_none(self._stated, keys.installed, keys.provider.public, self._clock()),
            hint=f"Take {asked} to the machine with that key, sign it there, and install it here:\n"
            f"  verifiable keys sign manifest.request --key provider.key --out provider.manifest\n"
            f"  verifiable keys install provider.manifest --data {data}\n"
            f"  verifiable serve --data {data} --provider-key {keys.public_file} …",
        )

    def _sign(self, key: PrivateKey) -> Signed:
        start = self._clock() - limits.CLOCK_SKEW
        manifest = replace(self._stated, valid_from=start, valid_to=start + limits.CLOCK_SKEW + self._validity)
        return self._keep(Signed(manifest, sign_manifest(manifest, key), manifest.digest(), key.public))

    def _keep(self, made: Signed) -> Signed:
        if self._store.manifest(made.digest) is None:
            self._store.add_manifest(made.digest, made.envelope)
            self._store.flush()
        self._say(made)
        self._known[made.digest] = made
        return made

    def _say(self, made: Signed) -> None:
        """Have it stand in the log, where it is not too long for that: whoever has a receipt has the manifest too."""
        if len(made.envelope) <= limits.ENTRY_BYTES:
            self._store.add_statement(MANIFEST, made.envelope)


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
