"""The manifest: who serves which model, with what settings, under which keys, and until when.

A provider signs one with its long-lived key. Everything else it signs (session heads) points at the manifest by the
SHA-256 of its payload, so nobody can later say that another model or another setting was meant. Format:
spec/protocol.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from verifiable import limits
from verifiable.errors import MalformedError, NewerVersionError, VerificationError, reading_signed
from verifiable.manifest import libraries
from verifiable.manifest.chain import Chain
from verifiable.manifest.identity import AdapterFile, ModelFile, ModelIdentity, with_more
from verifiable.manifest.libraries import Library
from verifiable.manifest.rope import MODELS_OWN, Rope
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.wire import cose, encoding
from verifiable.wire.keys import PrivateKey, PublicKey

__all__ = [
    "ALL_LAYERS",
    "LOG_PROBABILITIES",
    "RAW_LOGITS",
    "TYPE",
    "AdapterFile",
    "Library",
    "Manifest",
    "ModelFile",
    "ModelIdentity",
    "Rope",
    "Runtime",
    "verify_manifest",
]

TYPE = "application/vnd.verifiable.manifest+cbor"
RAW_LOGITS = 0
"""Value kind: logits as llama.cpp computed them, before any processor."""
LOG_PROBABILITIES = 1
"""Value kind: log-probabilities an upstream engine reported; such sessions can't be audited exactly."""

ALL_LAYERS = limits.U31
"""`Runtime.n_gpu_layers` where every layer is on a GPU."""

FORMS = 2
"""Version of the forms of requests that a provider of this release takes, and that this release can read."""

_ALWAYS = 16
"""Fields of `Runtime` that are always written; what follows is written where it says something."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The build and the settings that decide which bits the logits have.

    `n_ctx` counts tokens for one sequence, `n_gpu_layers` layers (`ALL_LAYERS` for all). `fingerprint` is the numerics
    probe's SHA-256 under these settings; `invariant` says whether the probe found that batching, threads and
    speculation change no bit. `device` names the devices of the GPU layers, empty where llama.cpp chose; `rope` is how
    positions are turned into angles, where that is not left to the model. `pairs`: no row was ever computed alone.
    `libraries` are the files that compute, by name; `compiler` is what they say of theirs, empty where they do not.
    """

    build: str
    bindings: str
    system: str
    n_ctx: int
    n_batch: int
    n_ubatch: int
    type_k: str
    type_v: str
    flash_attn: bool
    kv_unified: bool
    repack: bool
    tiled: bool
    swa_full: bool
    n_gpu_layers: int
    fingerprint: bytes
    invariant: bool
    device: str = ""
    rope: Rope = MODELS_OWN
    pairs: bool = False
    libraries: tuple[Library, ...] = ()
    compiler: str = ""

    def to_cbor(self) -> list[encoding.Value]:
        more: encoding.Map = {**({1: self.device} if self.device else {}), **self.rope.to_cbor()}
        if self.pairs:
            more[10] = True
        if self.libraries:
            more[11] = libraries.to_cbor(self.libraries)
        if self.compiler:
            more[12] = self.compiler
        return [*(getattr(self, name) for name in self.__slots__[:_ALWAYS]), *([more] if more else [])]

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> Runtime:
        items, more = with_more(value, _ALWAYS, range(1, 13), "manifest runtime")
        device = encoding.text(more.get(1, ""), "runtime device", limits.DEVICE_BYTES)
        if not device and 1 in more:
            raise MalformedError("runtime device", expected="no key where llama.cpp chooses", found="an empty name")
        if more.get(10, True) is not True:
            raise MalformedError("runtime pairs", expected="true, or no key", found=str(more[10]))
        return cls(
            encoding.text(items[0], "runtime build", limits.BUILD_BYTES),
            encoding.text(items[1], "runtime bindings", limits.BUILD_BYTES),
            encoding.text(items[2], "runtime system", limits.SYSTEM_BYTES),
            encoding.uint(items[3], "runtime n_ctx", limits.U31),
            encoding.uint(items[4], "runtime n_batch", limits.U31),
            encoding.uint(items[5], "runtime n_ubatch", limits.U31),
            encoding.text(items[6], "runtime type_k", limits.CACHE_TYPE_BYTES),
            encoding.text(items[7], "runtime type_v", limits.CACHE_TYPE_BYTES),
            encoding.boolean(items[8], "runtime flash_attn"),
            encoding.boolean(items[9], "runtime kv_unified"),
            encoding.boolean(items[10], "runtime repack"),
            encoding.boolean(items[11], "runtime tiled"),
            encoding.boolean(items[12], "runtime swa_full"),
            encoding.uint(items[13], "runtime n_gpu_layers", limits.U31),
            encoding.bytes_(items[14], "runtime fingerprint", 32),
            encoding.boolean(items[15], "runtime invariant"),
            device,
            Rope.from_cbor(more),
            10 in more,
            libraries.from_cbor(more.get(11, [])),
            encoding.text(more.get(12, ""), "runtime compiler", limits.COMPILER_BYTES),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A provider's signed statement; times are milliseconds since 1970 (UTC), `k` is the record's entry count.

    `log` is the key of the provider-wide log, whose name is the log's origin; None where there is no such log. `forms`
    is the version of the forms of requests that are taken.
    """

    provider: str
    valid_from: int
    valid_to: int
    model: ModelIdentity
    runtime: Runtime
    k: int
    value_kind: int
    defaults: SamplingDefaults
    drafters: tuple[str, ...]
    session_keys: tuple[PublicKey, ...]
    log: PublicKey | None = None
    forms: int = FORMS

    def payload(self) -> bytes:
        """The deterministic CBOR that is signed, and whose SHA-256 is the manifest's digest."""
        return encoding.encode(
            {
                1: encoding.PROTOCOL,
                2: self.provider,
                3: self.valid_from,
                4: self.valid_to,
                5: self.model.to_cbor(),
                6: self.runtime.to_cbor(),
                7: [self.k, self.value_kind],
                8: [encoding.PROTOCOL, self.defaults.to_cbor()],
                9: list(self.drafters),
                10: [key.vkey() for key in self.session_keys],
                11: None if self.log is None else self.log.vkey(),
                12: self.forms,
            }
        )

    def digest(self) -> bytes:
        return hashlib.sha256(self.payload()).digest()

    def sign(self, key: PrivateKey) -> bytes:
        return cose.sign1(self.payload(), key, TYPE)

    @classmethod
    def parse(cls, payload: bytes) -> Manifest:
        """Read a manifest's payload strictly; raises MalformedError or NewerVersionError."""
        fields = encoding.versioned(encoding.decode(payload), range(1, 13), "manifest")
        forms = encoding.uint(fields[12], "manifest request forms")
        if forms > FORMS:
            said = f"requests of forms {forms}; this reads {FORMS}"
            raise NewerVersionError(said, expected=f"request forms {FORMS}", found=forms)
        if forms < FORMS:
            raise MalformedError("manifest request forms", expected=FORMS, found=forms)
        k, kind = encoding.array(fields[7], 2, "manifest commitment")
        sampler = encoding.array(fields[8], 2, "manifest sampler")
        encoding.version(sampler[0], "sampler version")
        keys = encoding.array(fields[10], None, "manifest session keys")
        if not 1 <= len(keys) <= limits.SESSION_KEYS:
            raise MalformedError("manifest session keys", expected=f"1 to {limits.SESSION_KEYS}", found=str(len(keys)))
        manifest = cls(
            provider=encoding.text(fields[2], "manifest provider", limits.PROVIDER_BYTES),
            valid_from=encoding.uint(fields[3], "manifest valid-from"),
            valid_to=encoding.uint(fields[4], "manifest valid-to"),
            model=ModelIdentity.from_cbor(fields[5]),
            runtime=Runtime.from_cbor(fields[6]),
            k=encoding.uint(k, "commitment k", limits.ENTRIES),
            value_kind=encoding.uint(kind, "commitment value kind", LOG_PROBABILITIES),
            defaults=SamplingDefaults.from_cbor(sampler[1]),
            drafters=tuple(
                encoding.text(name, "drafter", limits.DRAFTER_BYTES)
                for name in encoding.array(fields[9], None, "manifest drafters", maximum=limits.DRAFTERS)
            ),
            session_keys=tuple(PublicKey.parse(encoding.text(key, "session key", limits.KEY_BYTES)) for key in keys),
            log=None if fields[11] is None else PublicKey.parse(encoding.text(fields[11], "log key", limits.KEY_BYTES)),
        )
        if manifest.k < 1:
            raise MalformedError("commitment k", expected=f"1 to {limits.ENTRIES}", found="0")
        if manifest.valid_from > manifest.valid_to:
            raise MalformedError("manifest validity", expected="valid-from not after valid-to", found="the reverse")
        if manifest.payload() != payload:
            raise MalformedError("manifest", expected="the only spelling of its fields", found="another spelling")
        return manifest

    @classmethod
    def peek(cls, data: bytes) -> Manifest:
        """Read a signed manifest without verifying it; raises MalformedError."""
        return cls.parse(cose.peek1(data).payload)

    def check_valid_at(self, time: int, what: str) -> None:
        """Raise VerificationError (`manifest-expired`) unless `time` (ms) lies within the validity."""
        if not self.valid_from <= time <= self.valid_to:
            raise VerificationError(
                f"the manifest was not valid at the time of the {what}",
                code="manifest-expired",
                expected=f"a time from {self.valid_from} to {self.valid_to} (ms since 1970)",
                found=str(time),
                hint="Ask the provider for a manifest that covers that time.",
            )


def verify_manifest(data: bytes, trusted: Iterable[PublicKey]) -> Manifest:
    """Check a signed manifest against the keys that the verifier was given, and read it."""
    return open_manifest(data, trusted)[0]


def open_manifest(data: bytes, trusted: Iterable[PublicKey]) -> tuple[Manifest, PublicKey]:
    """As `verify_manifest`, with the trusted key that signed it: who the provider is, whatever it calls itself."""
    chain = Chain.of(trusted)
    try:
        signed = cose.verify1(data, chain, TYPE)
    except VerificationError as error:
        if error.code == "untrusted-key":
            error.hint = f"{error.hint} {chain.advice}"
        raise
    with reading_signed():
        return Manifest.parse(signed.payload), signed.key
