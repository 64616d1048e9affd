"""The auditor's client of a provider's proof API. The provider is the adversary here.

Every exchange is held to the bounds of `verifiable.net`, and what comes back is parsed strictly. A provider that cannot
be reached, or does not hand over what it should in the form of the API, is a VerificationError with code `unreachable`
or `no-evidence`: nobody signs an answer's body, so nothing is proven by it, and it does not count as a pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.manifest.statements import KeysFile
from verifiable.net.client import ExchangeError, Failure, HttpClient
from verifiable.session.records import SESSION_ID_BYTES
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PublicKey
from verifiable.wire.text import HASH_SIZE, from_hex, read_base64url

T = TypeVar("T")
_FAILED = {
    Failure.SLOW: "the provider's answer to {} is too slow",
    Failure.LONG: "the provider's answer to {} is too long",
    Failure.COMPRESSED: "the provider's answer to {} is compressed, unasked",
    Failure.BROKEN: "no answer from the provider for {}",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """A session in the provider's public list: id, size of its log, when it was opened (ms), signed head."""

    session: bytes
    size: int
    opened: int
    head: bytes


class Client:
    """Reads manifests, sessions, receipts and evidence from a provider.

    Args:
        base: the provider's URL, with or without a final /v1.
        auditor_key: a key that the operator issued; opens every session's evidence.
        capability: a session's reader's capability (32 bytes), as a receipt holds it; None where it holds none.
        clients: the capabilities of sessions by their ids, of receipts that clients handed over. Those sessions are
            asked for as their clients would ask, without the auditor's key.

    Raises:
        PolicyError: `base` is no http or https URL.
    """

    def __init__(
        self,
        base: str,
        *,
        auditor_key: str | None = None,
        capability: bytes | None = None,
        clients: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._http = HttpClient(base.rstrip("/").removesuffix("/v1"), "the provider", "verifiable-audit")
        self.base = self._http.base
        self._headers = {} if auditor_key is None else {"Authorization": f"Bearer {auditor_key}"}
        if capability is not None:
            self._headers["X-Verifiable-Capability"] = capability.hex()
        self._clients = {session.hex(): capability.hex() for session, capability in (clients or {}).items()}

    def manifest(self) -> bytes:
        """The provider's current manifest, signed; not checked here."""
        return self._get("/v1/manifest", limits.SIGNED_BYTES)

    def keys(self) -> KeysFile:
        """The provider's statements on its keys; not checked here."""
        return read_answer(KeysFile.parse, self._get("/v1/keys", limits.KEYS_BYTES))

    def sessions(self, most: int) -> list[Listed]:
        """The newest sessions, at most `most`."""
        sessions: dict[bytes, Listed] = {}
        before: str | None = None
        for _ in range(limits.PAGES):
            query = {"limit": str(min(limits.LISTED, most))} | ({} if before is None else {"before": before})
            entries, before = read_answer(_page, self._get("/v1/sessions", limits.LISTING_BYTES, query), before)
            for listed in entries:
                if listed.session in sessions:
                    expected, found = "each session once", listed.session.hex()
                    raise _unreachable("the provider's list shows a session twice", expected, found)
                sessions[listed.session] = listed
                if len(sessions) >= most:
                    return list(sessions.values())
            if before is None:
                return list(sessions.values())
        raise _unreachable("the provider's list has too many pages", f"at most {limits.PAGES}", "more")

    def receipt(self, session: bytes, size: int | None = None) -> bytes:
        """The receipt of a session, under the head of `size` leaves or the newest."""
        query = None if size is None else {"size": str(size)}
        return self._get(f"/v1/sessions/{session.hex()}/receipt", limits.RECEIPT_BYTES, query)

    def evidence(
        self, session: bytes, kind: str = "tokens", turns: Sequence[int] | None = None, size: int | None = None
    ) -> bytes:
        """Evidence of kind `tokens` or `full`, of some turns or all, under the head of `size` leaves or the newest."""
        query = {"kind": kind}
        if turns is not None:
            query["turns"] = ",".join(map(str, turns))
        if size is not None:
            query["size"] = str(size)
        return self._get(f"/v1/sessions/{session.hex()}/evidence", limits.EVIDENCE_BYTES, query)

    def checkpoint(self) -> bytes:
        """The log's newest checkpoint, a signed note; not checked here."""
        return self._get("/log/checkpoint", limits.NOTE_BYTES)

    def log_proof(self, session: bytes, size: int) -> bytes:
        """The `.tlog-proof` file of a session's head of `size` leaves; not checked here."""
        query = {"session": session.hex(), "head": str(size)}
        return self._get("/v1/log/proof", 2 * limits.NOTE_BYTES, query, accept="text/x.tlog.proof")

    def reports(self, about: PublicKey, since: int) -> tuple[list[tuple[bytes, TlogProof]], int | None]:
        """Verdicts about a provider that the log shows, each with what proves its place; where the next ones begin."""
        query = {"about": about.kid.hex(), "from": str(since)}
        return read_answer(_reports, self._get("/v1/log/reports", limits.REPORTS_BYTES, query))

    def log_file(self, path: str, most: int) -> bytes:
        """A file of the log, a tile or a bundle of entries, of at most `most` bytes."""
        return self._get(f"/log/{path}", most)

    def log_entries(self, indices: Sequence[int], size: int) -> tuple[list[bytes], list[bytes]]:
        """Entries of the log of `size` entries, and the multiproof of their indices; not checked here."""
        query = {"indices": ",".join(map(str, indices)), "size": str(size)}
        return read_answer(_entries, self._get("/v1/log/entries", limits.LISTING_BYTES, query), len(indices))

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The hashes that say that the log of size `new` extends that of size `old`."""
        query = {"old": str(old), "new": str(new)}
        return read_answer(_hashes, self._get("/v1/log/consistency", limits.RECEIPT_BYTES, query))

    def continuation(self, session: bytes, old: int, new: int) -> list[bytes]:
        """The hashes from which a session's roots of `old` and of `new` leaves follow; not checked here."""
        query = {"old": str(old), "new": str(new)}
        path = f"/v1/sessions/{session.hex()}/consistency"
        return read_answer(_hashes, self._get(path, limits.RECEIPT_BYTES, query))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, path: str, limit: int, query: Mapping[str, str] | None = None, accept: str | None = None) -> bytes:
        capability = self._clients.get(path.removeprefix("/v1/sessions/").partition("/")[0])
        headers = self._headers if capability is None else {"X-Verifiable-Capability": capability}
        headers = headers if accept is None else {**headers, "Accept": accept}
        try:
            answer = self._http.ask(path.removeprefix("/"), limit, query=query, headers=headers)
        except ExchangeError as error:
            raise _unreachable(_FAILED[error.failure].format(path), error.expected, error.found) from error
        if answer.status == 200:
            return answer.body
        if answer.status in (401, 403, 404):
            raise VerificationError(
                f"the provider does not hand over {path}",
                code="no-evidence",
                expected="200",
                found=str(answer.status),
                hint="An unknown session and a missing right look alike: is --auditor-key right?",
            )
        if answer.status == 410:
            raise VerificationError(
                f"the provider no longer has {path}",
                code="erased",
                expected="200",
                found="410",
                hint="A client erased it, or the provider's time for keeping it is over. It says so; nothing shows it.",
            )
        if 300 <= answer.status < 400:
            raise _unreachable(f"the provider sends {path} elsewhere", "no redirect", answer.status)
        raise _unreachable(f"the provider refuses {path}", "200", answer.status)


def _unreachable(what: str, expected: object, found: object) -> VerificationError:
    return VerificationError(
        what,
        code="unreachable",
        expected=expected,
        found=found,
        hint="Nothing is proven by this, but evidence that is not given counts against a provider.",
    )


def read_answer(read: Callable[..., T], body: bytes, *context: Any) -> T:
    """What a body says. Raises VerificationError (`unreachable`) where it has not the form that `read` wants."""
    try:
        return read(body, *context)
    except MalformedError as error:
        what = f"the provider's answer is none: {error.what}"
        raise _unreachable(what, error.expected, error.found) from error


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedError("the answer", expected="JSON", found=str(error)) from error
    if not isinstance(value, dict):
        raise MalformedError("the answer", expected="an object", found=type(value).__name__)
    return value


def _page(data: bytes, before: str | None) -> tuple[list[Listed], str | None]:
    """The entries of one page of the list, which was asked for with that cursor, and the cursor of the next."""
    page = _object(data)
    entries, following = page.get("sessions"), page.get("next")
    if not isinstance(entries, list) or len(entries) > limits.LISTED:
        found = type(entries).__name__
        raise MalformedError("list of sessions", expected=f"a list of at most {limits.LISTED}", found=found)
    if following is not None and (not isinstance(following, str) or len(following) > 256 or following == before):
        raise MalformedError("list of sessions: next", expected="a new cursor or null", found=str(following)[:80])
    return [_listed(entry) for entry in entries], following


def _hashes(data: bytes) -> list[bytes]:
    return _path(_object(data))


def _path(said: Mapping[str, Any], most: int = 128) -> list[bytes]:
    path = said.get("path")
    hashes = [from_hex(item, HASH_SIZE) for item in path] if isinstance(path, list) and len(path) <= most else [None]
    if not all(hashes):
        raise MalformedError("the proof's path", expected=f"at most {most} hashes", found=str(path)[:80])
    return [item for item in hashes if item is not None]


def _reports(data: bytes) -> tuple[list[tuple[bytes, TlogProof]], int | None]:
    page = _object(data)
    note, entries, following = page.get("checkpoint"), page.get("reports"), page.get("next")
    if not isinstance(note, str) or not isinstance(entries, list) or len(entries) > limits.LISTED:
        raise MalformedError("reports", expected=f"a checkpoint and at most {limits.LISTED} reports", found="neither")
    found = []
    for each in entries:
        if not isinstance(each, dict) or not isinstance(each.get("entry"), str):
            raise MalformedError("report", expected="an index, an entry and a path", found=str(each)[:80])
        proof = TlogProof(_count(each, "index"), tuple(_path(each)), note.encode())
        found.append((read_base64url(each["entry"], "report: entry"), proof))
    return found, None if following is None else _count(page, "next")


def _entries(data: bytes, count: int) -> tuple[list[bytes], list[bytes]]:
    said = _object(data)
    entries = said.get("entries")
    if not isinstance(entries, list) or len(entries) != count or not all(isinstance(each, str) for each in entries):
        raise MalformedError("log entries", expected=f"{count} texts", found=str(entries)[:80])
    return [read_base64url(each, "log entry") for each in entries], _path(said, 64 * count)


def _listed(entry: object) -> Listed:
    if not isinstance(entry, dict):
        raise MalformedError("listed session", expected="an object", found=type(entry).__name__)
    session, head = from_hex(entry.get("id"), SESSION_ID_BYTES), entry.get("head")
    if session is None:
        raise MalformedError("listed session: id", expected="32 hexadecimal digits", found=str(entry.get("id"))[:80])
    if not isinstance(head, str) or len(head) > 1 << 16:
        raise MalformedError("listed session: head", expected="base64url", found=type(head).__name__)
    signed = read_base64url(head, "listed session: head")
    return Listed(session, _count(entry, "size"), _count(entry, "opened"), signed)


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limits.U63:
        raise MalformedError(f"listed: {name}", expected="a whole number", found=str(value)[:80])
    return value
