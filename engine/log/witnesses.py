"""Asking witnesses to cosign a checkpoint (c2sp.org/tlog-witness), and how many of them have to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from engine.log.tree import LogTree
from verifiable.errors import MalformedError, PolicyError, VerifiableError
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.cosignature import CosignerKey
from verifiable.tlog.note import Note, Signature
from verifiable.tlog.witness import AddCheckpoint
from verifiable.wire.keys import PublicKey
from verifiable.wire.spelling import decimal

log = logging.getLogger(__name__)

TIMEOUT = 5.0
"""Seconds that one witness may take."""
_MAX_ANSWER = 1 << 16


@dataclass(frozen=True, slots=True)
class Witness:
    """A witness's key, and the URL below which it answers `add-checkpoint`."""

    key: CosignerKey
    url: str

    @classmethod
    def parse(cls, text: str) -> Witness:
        """Read `VKEY URL`."""
        vkey, space, url = text.strip().partition(" ")
        if not space or not url.startswith(("http://", "https://")):
            raise PolicyError("witness", expected="a verifier key and a URL: 'name+hash+key https://…'", found=text)
        return cls(CosignerKey.parse(vkey), url.rstrip("/"))


@dataclass(slots=True)
class Standing:
    """What is known of a witness: the size that it cosigned last, and why it did not cosign since."""

    size: int = 0
    trouble: str | None = None


class Witnesses:
    """The witnesses of one log; `quorum` of them must cosign a checkpoint before it is published."""

    def __init__(self, witnesses: Sequence[Witness], quorum: int) -> None:
        if not 0 <= quorum <= len(witnesses):
            raise PolicyError("the quorum of witnesses", expected=f"0 to {len(witnesses)}", found=quorum)
        if len({(witness.key.name, witness.key.key_id) for witness in witnesses}) != len(witnesses):
            raise PolicyError("the witnesses", expected="each once", found="one of them twice")
        self.witnesses = tuple(witnesses)
        self.quorum = quorum
        self.standing = {witness.key.name: Standing() for witness in witnesses}
        self._client = httpx.Client(timeout=TIMEOUT, follow_redirects=False) if witnesses else None

    def cosign(self, note: bytes, log_key: PublicKey, tree: LogTree) -> bytes:
        """The note with the cosignatures that it got. Raises PolicyError where they are fewer than the quorum."""
        if self._client is None:
            return note
        with ThreadPoolExecutor(len(self.witnesses)) as pool:
            lines = list(pool.map(lambda witness: self._ask(witness, note, log_key, tree), self.witnesses))
        signatures = [line for line in lines if line is not None]
        if len(signatures) < self.quorum:
            troubles = [f"{name}: {standing.trouble}" for name, standing in self.standing.items() if standing.trouble]
            raise PolicyError(
                "too few witnesses cosigned the checkpoint; it stays unpublished",
                expected=f"{self.quorum} of {len(self.witnesses)}",
                found="; ".join(troubles),
            )
        return Note.parse(note).add(*signatures).format()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _ask(self, witness: Witness, note: bytes, log_key: PublicKey, tree: LogTree) -> Signature | None:
        standing = self.standing[witness.key.name]
        try:
            signature = self._add(witness, standing, note, log_key, tree)
            standing.trouble = None
            return signature
        except (httpx.HTTPError, VerifiableError) as error:
            if standing.trouble != str(error):
                log.warning("witness %s did not cosign: %s", witness.key.name, error)
            standing.trouble = str(error) or type(error).__name__
            return None

    def _add(self, witness: Witness, standing: Standing, note: bytes, log_key: PublicKey, tree: LogTree) -> Signature:
        size = open_checkpoint(note, log_key).checkpoint.size
        for _ in range(2):  # a witness that remembers another size says so, once
            old = min(standing.size, size)
            request = AddCheckpoint(old, tuple(tree.consistency_proof(old, size)), note)
            answer = self._post(witness, request.format())
            if answer.status_code != 409:
                break
            standing.size = decimal(answer.text.strip(), "the size that a witness remembers")
            if standing.size > size:
                raise PolicyError(
                    "it remembers a larger size of this log than the store holds",
                    expected=f"at most {size}",
                    found=standing.size,
                    hint="Was the store restored from an old backup?",
                )
        if answer.status_code != 200:
            raise PolicyError("it refused", found=f"{answer.status_code} {answer.text[:200].strip()}")
        signature = self._read(answer.content)
        opened = Note.parse(note).add(signature)
        opened.verify([witness.key])
        standing.size = size
        return signature

    def _post(self, witness: Witness, body: bytes) -> httpx.Response:
        if self._client is None:
            raise PolicyError("there are no witnesses")
        answer = self._client.post(f"{witness.url}/add-checkpoint", content=body)
        if len(answer.content) > _MAX_ANSWER:
            raise MalformedError("a witness's answer", expected=f"at most {_MAX_ANSWER} bytes")
        return answer

    @staticmethod
    def _read(data: bytes) -> Signature:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedError("a witness's answer", expected="a signature line in UTF-8") from None
        lines = text.split("\n")
        if len(lines) != 2 or lines[1]:
            raise MalformedError("a witness's answer", expected="one signature line", found=f"{len(lines) - 1} lines")
        return Signature.parse(lines[0])
