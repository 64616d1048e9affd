"""Asking witnesses to cosign a checkpoint (c2sp.org/tlog-witness), and how many of them have to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.log.tree import LogTree
from verifiable import limits
from verifiable.errors import MalformedError, PolicyError, VerifiableError
from verifiable.net.client import HttpAnswer, HttpClient
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.cosignature import CosignerKey
from verifiable.tlog.note import Note, Signature
from verifiable.tlog.witness import AddCheckpoint
from verifiable.wire.keys import PublicKey
from verifiable.wire.text import decimal

log = logging.getLogger(__name__)

TIMEOUT = 5.0
"""Seconds that one exchange with a witness may take."""
_MAX_ANSWER = 1 << 16
_EVERY_STATUS = range(600)
"""A refusal's reason is read too: it is what an operator is told."""


@dataclass(frozen=True, slots=True)
class WitnessEndpoint:
    """A witness's key, and the URL below which it answers `add-checkpoint`."""

    key: CosignerKey
    url: str

    @classmethod
    def parse(cls, text: str) -> WitnessEndpoint:
        """Read `VKEY URL`."""
        vkey, space, url = text.strip().partition(" ")
        if not space or not url.startswith(("http://", "https://")):
            raise PolicyError("witness", expected="a verifier key and a URL: 'name+hash+key https://…'", found=text)
        return cls(CosignerKey.parse(vkey), url.rstrip("/"))


@dataclass(slots=True)
class WitnessState:
    """What is known of a witness: the size that it cosigned last, and why it did not cosign since."""

    size: int = 0
    trouble: str | None = None


class Witnesses:
    """The witnesses of one log; `quorum` of them must cosign a checkpoint before it is published."""

    def __init__(self, witnesses: Sequence[WitnessEndpoint], quorum: int) -> None:
        if len(witnesses) >= limits.NOTE_SIGNATURES:  # the log's own line is one of them
            raise PolicyError("the witnesses", expected=f"fewer than {limits.NOTE_SIGNATURES}", found=len(witnesses))
        if not 0 <= quorum <= len(witnesses):
            raise PolicyError("the quorum of witnesses", expected=f"0 to {len(witnesses)}", found=quorum)
        if len({(witness.key.name, witness.key.key_id) for witness in witnesses}) != len(witnesses):
            raise PolicyError("the witnesses", expected="each once", found="one of them twice")
        self.witnesses = tuple(witnesses)
        self.quorum = quorum
        self.states = {witness.key.name: WitnessState() for witness in witnesses}
        self._clients = {
            witness: HttpClient(witness.url, f"witness {witness.key.name}", "verifiable-log", TIMEOUT)
            for witness in witnesses
        }

    def cosign(self, note: bytes, log_key: PublicKey, tree: LogTree) -> bytes:
        """The note with the cosignatures that it got. Raises PolicyError where they are fewer than the quorum."""
        if not self.witnesses:
            return note
        with ThreadPoolExecutor(len(self.witnesses)) as pool:
            lines = list(pool.map(lambda witness: self._ask(witness, note, log_key, tree), self.witnesses))
        signatures = [line for line in lines if line is not None]
        if len(signatures) < self.quorum:
            troubles = [f"{name}: {state.trouble}" for name, state in self.states.items() if state.trouble]
            raise PolicyError(
                "too few witnesses cosigned the checkpoint; it stays unpublished",
                expected=f"{self.quorum} of {len(self.witnesses)}",
                found="; ".join(troubles),
            )
        return Note.parse(note).add(*signatures).format()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _ask(self, witness: WitnessEndpoint, note: bytes, log_key: PublicKey, tree: LogTree) -> Signature | None:
        state = self.states[witness.key.name]
        try:
            signature = self._add(witness, state, note, log_key, tree)
            state.trouble = None
            return signature
        except VerifiableError as error:
            if state.trouble != str(error):
                log.warning("witness %s did not cosign: %s", witness.key.name, error)
            state.trouble = str(error)
            return None

    def _add(
        self, witness: WitnessEndpoint, state: WitnessState, note: bytes, log_key: PublicKey, tree: LogTree
    ) -> Signature:
        size = open_checkpoint(note, log_key).checkpoint.size
        for _ in range(2):  # a witness that remembers another size says so, once
            old = min(state.size, size)
            request = AddCheckpoint(old, tuple(tree.consistency_proof(old, size)), note)
            answer = self._clients[witness].ask(
                "add-checkpoint", _MAX_ANSWER, post=request.format(), read=_EVERY_STATUS
            )
            if answer.status != 409:
                break
            state.size = decimal(_text(answer), "the size that a witness remembers")
            if state.size > size:
                raise PolicyError(
                    "it remembers a larger size of this log than the store holds",
                    expected=f"at most {size}",
                    found=state.size,
                    hint="Was the store restored from an old backup?",
                )
        if answer.status != 200:
            raise PolicyError("it refused", found=f"{answer.status} {_text(answer)[:200]}")
        signature = _signature(answer.body)
        Note.parse(note).add(signature).verify([witness.key])
        state.size = size
        return signature


def _text(answer: HttpAnswer) -> str:
    return answer.body.decode("utf-8", "replace").strip()


def _signature(data: bytes) -> Signature:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedError("a witness's answer", expected="a signature line in UTF-8") from None
    lines = text.split("\n")
    if len(lines) != 2 or lines[1]:
        raise MalformedError("a witness's answer", expected="one signature line", found=f"{len(lines) - 1} lines")
    return Signature.parse(lines[0])
