"""What a receipt's own log proof shows: that its head stands in a log that others see too, only where witnesses say so.

A log's key signs whatever its holder likes. A tree of one entry, made for one client, gives a sound proof as well.
"""

from __future__ import annotations

from dataclasses import replace

from verifiable.checking.caveats import About, Caveat
from verifiable.checking.verdict import Check, Status, Step, Verdict
from verifiable.errors import VerificationError
from verifiable.tlog.cosignature import Quorum
from verifiable.tlog.proof import Inclusion

NO_PROOF = Caveat("log-not-shown", "the receipt carries no proof of it")
NO_RECEIPT = Caveat("log-not-shown", "no receipt with a proof of it was given")
LOG_ALONE = Caveat("log-not-shown", "the log's own key alone signed the proof's checkpoint: no witness was named")


def caveat(proven: bool) -> Caveat:
    """What is to be said of a receipt with a sound log proof, or without one, where nobody else vouches for the log."""
    return LOG_ALONE if proven else NO_PROOF


def check_quorum(proof: Inclusion | None, quorum: Quorum) -> tuple[str, ...]:
    """Of step 11: the names of the witnesses who cosigned a receipt's checkpoint.

    Raises VerificationError: `too-few-witnesses`, also without a proof; `bad-signature`, of a named witness.
    """
    if proof is None:
        raise VerificationError(
            "the receipt carries no log proof that a witness could have cosigned",
            code="too-few-witnesses",
            expected=f"{quorum.needed} of {len(quorum.witnesses)}",
            found="no proof",
            hint="Ask the provider for the receipt again: its log may have taken the session in since.",
        )
    return quorum.check(proof.note, proof.log)


def with_log(verdict: Verdict, proof: Inclusion | None, quorum: Quorum) -> Verdict:
    """A receipt's verdict with what its log proof shows.

    A pass is inconclusive (`too-few-witnesses`) where witnesses were named and too few of them cosigned.

    Raises VerificationError: `bad-signature`, a named witness's line that it did not sign.
    """
    notes = tuple(note for note in verdict.notes if note.about is not About.LOG)
    place = "" if proof is None else f"entry {proof.index:,} of {proof.checkpoint.size:,} in {proof.log.name}"
    if not quorum.witnesses:
        alone = () if proof is None else (Check(Step.LOG, None, f"{place}, as the log's own key says"),)
        return replace(verdict, checks=(*verdict.checks, *alone), notes=(*notes, caveat(proof is not None)))
    try:
        names = check_quorum(proof, quorum)
    except VerificationError as error:
        if error.code != "too-few-witnesses":
            raise
        checks = (*verdict.checks, Check(Step.LOG, None, error.what))
        missing = replace(verdict, checks=checks, notes=(*notes, Caveat("log-not-shown", error.what)))
        if verdict.status in (Status.FAILED, Status.INCONCLUSIVE):
            return missing
        return replace(
            missing,
            status=Status.INCONCLUSIVE,
            code=error.code,
            summary=error.what,
            expected=str(error.expected),
            found=str(error.found),
            hint=error.hint,
        )
    seen = Check(Step.LOG, True, f"{place}, under a checkpoint that {', '.join(names)} cosigned")
    return replace(verdict, checks=(*verdict.checks, seen), notes=notes)
