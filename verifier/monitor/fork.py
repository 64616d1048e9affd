"""Fork files: two checkpoints that one log signed and that do not go together, for others to check."""

from __future__ import annotations

import json
from collections.abc import Sequence

from verifiable.checking.verdict import Check, Status, Step, Verdict
from verifiable.errors import MalformedError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.merkle import verify_consistency
from verifiable.wire.keys import PublicKey
from verifier.offline.fault import Fault

MAX_FORK = 1 << 22
"""Bytes of a file: two notes of at most a megabyte each, and a proof."""


def fork_file(what: str, log: PublicKey, notes: Sequence[bytes], proof: Sequence[bytes]) -> bytes:
    """The file: what is wrong, the log's key, both signed checkpoints, and the consistency proof that the log gave."""
    content = {
        "what": what,
        "log": log.vkey(),
        "checkpoints": [note.decode("utf-8") for note in notes],
        "proof": [value.hex() for value in proof],
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def check_fork(data: bytes, trust: Sequence[PublicKey]) -> Fault:
    """What a fork file proves to somebody who trusts nobody but the log's key: two roots for one size.

    Two sizes prove that the log signed both, and no more: every log that grows signs such a pair, and nobody signs that
    a consistency proof was refused. Whoever made the file may have left it out.

    Raises:
        MalformedError: not a fork file. VerificationError: the checkpoints are not the log's, `no-conflict`, or
            `nothing-checked` for two sizes.
    """
    try:
        content = json.loads(data)
        key = next((key for key in trust if key.vkey() == content["log"]), None)
        if key is None:
            raise VerificationError("the log's key is not trusted", code="untrusted-key", found=content["log"])
        log = Chain.of(trust).log_family(key)
        first, second = (open_checkpoint(note.encode(), log).checkpoint for note in content["checkpoints"])
        proof = [bytes.fromhex(value) for value in content["proof"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedError("fork evidence", expected="two checkpoints and a proof", found=str(error)) from error
    if first.size == second.size:
        if first.root == second.root:
            raise VerificationError("the two checkpoints agree", code="no-conflict")
        return Fault(
            "log-forked",
            f"{key.name} signed two roots for size {first.size}",
            expected=first.root.hex(),
            found=second.root.hex(),
            hint="Proven by what the log itself signed.",
        )
    small, large = sorted((first, second), key=lambda head: head.size)
    try:
        verify_consistency(small.size, large.size, proof, small.root, large.root)
    except VerificationError as error:
        raise VerificationError(
            f"{key.name} signed sizes {small.size} and {large.size}, and the file has no proof that the one extends "
            "the other",
            code="nothing-checked",
            expected="two roots for one size, or a consistency proof",
            found=f"{len(proof)} hashes that are none" if proof else "no proof",
            hint="A log that grows signs many sizes. Ask the log itself for the consistency proof of these two, as "
            "`verifiable monitor` does: only whoever asked knows that it has none.",
        ) from error
    raise VerificationError("the larger checkpoint extends the smaller one", code="no-conflict")


def verify(data: bytes, trust: Sequence[PublicKey]) -> Verdict:
    """What `verifiable verify --fork` says: failed where a fork is proven, else inconclusive.

    A file that proves nothing accuses nobody. Raises MalformedError: it is no fork file.
    """
    try:
        fault = check_fork(data, trust)
    except VerificationError as error:
        why = Fault.of(error)
        return Verdict(
            Status.INCONCLUSIVE,
            f"the file proves no fork: {why.what}",
            code="nothing-checked",
            expected=why.expected,
            found=why.found,
            hint=why.hint,
            checks=(Check(Step.FORK, None, why.what),),
        )
    return fault.verdict(checks=(Check(Step.FORK, True, fault.what),))
