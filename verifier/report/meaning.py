"""Reason codes in a buyer's words: what a finding means, and what it does not prove. Codes: spec/reason-codes.md."""

from __future__ import annotations

from dataclasses import dataclass

from verifiable.checking.verdict import INCONCLUSIVE_CODES


@dataclass(frozen=True, slots=True)
class Meaning:
    """`means` and `not_proven` are whole sentences."""

    means: str
    not_proven: str


_ON_ITS_WAY = "Anything against the provider: what came is not what was signed, whoever changed it. Get it again."
_TAMPERED = "It does not show who changed it: the provider, or somebody between the provider and you."
_OWN_RECORDS = "It does not show why; the provider may have made an honest mistake in its software."

MEANINGS = {
    "logits-differ": Meaning(
        "The provider did not compute this answer with the model, the settings and the prompt that it signed for.",
        "It does not show what was run instead, unless that is stated as proven.",
    ),
    "distribution-differs": Meaning(
        "The provider's numbers are further from the model than any honest machine's rounding: it ran something else.",
        "It does not show what was run instead. It rests on a calibration, and is wrong with the stated probability.",
    ),
    "draws-differ": Meaning(
        "The tokens drawn are not those that this machine's own logits and the turns' noise give, beyond rounding.",
        "It does not show whether records were moved to choose tokens, or another model was run. It rests on a "
        "calibration, and is wrong with the stated probability.",
    ),
    "records-differ": Meaning(
        "The provider did not compute this answer with the model, the settings and the prompt that it signed for.",
        "It shows a range of tokens, not yet the first one; the full records would.",
    ),
    "kv-cache-differs": Meaning(
        "The provider saved memory by keeping the model's working memory in a coarser form than it signed for.",
        "It does not say how much worse the answers are for it.",
    ),
    "prompt-differs": Meaning(
        "The model was not given the conversation of the request: something was added, changed or left out.",
        "It does not show the words that were put in.",
    ),
    "temperature-differs": Meaning(
        "The answer was drawn with more or less chance than the request says, in every token.",
        "It does not say that the model itself was another one.",
    ),
    "token-not-sampled": Meaning(
        "A word of the answer was replaced after the model had computed its choice.",
        "It does not show who wanted which word.",
    ),
    "text-not-sampled": Meaning(
        "The answer was not drawn from this model: most likely a cheaper one wrote it, and this one only scored it.",
        "It does not show which model wrote it.",
    ),
    "text-differs": Meaning(
        "The text is not the text that the provider committed to.",
        "If the text came by way of others, it does not show who changed it.",
    ),
    "finish-differs": Meaning(
        "The answer ends elsewhere, or for another reason, than its tokens say.",
        "It does not say that the words before that are wrong.",
    ),
    "parameters-differ": Meaning("The answer was drawn with other settings than the request has.", _OWN_RECORDS),
    "request-differs": Meaning("The provider committed to another request than this one.", _TAMPERED),
    "nonce-differs": Meaning(
        "The request's nonce was not used, so the provider could have tried draws until it liked one.", _TAMPERED
    ),
    "time-differs": Meaning(
        "The conversation was not opened, or the answer not signed, when your request was on its way.",
        "It does not show that the answer is another one; a clock may be wrong, yours too.",
    ),
    "salt-differs": Meaning("The secret in the evidence does not open the records that were signed.", _ON_ITS_WAY),
    "evidence-differs": Meaning(
        "The tokens or the request in the evidence are not those that were signed.", _ON_ITS_WAY
    ),
    "root-differs": Meaning(
        "The records in the file are not those that were signed: a part was changed, moved or left out.", _ON_ITS_WAY
    ),
    "bad-signature": Meaning(
        "The signature does not fit: the file was changed on its way, or somebody else signed it.", _ON_ITS_WAY
    ),
    "unsupported-algorithm": Meaning(
        "It is signed by another method than the protocol allows, so nobody vouches for it.", _ON_ITS_WAY
    ),
    "wrong-type": Meaning("A signature that was made for another kind of object stands in its place.", _ON_ITS_WAY),
    "other-manifest": Meaning(
        "The statement of model and keys in the file is not the one that was signed for.", _ON_ITS_WAY
    ),
    "wrong-origin": Meaning("The proof attached is from another log than the provider's.", _ON_ITS_WAY),
    "bad-inclusion-proof": Meaning(
        "The proof attached does not show that the provider's log holds this session.", _ON_ITS_WAY
    ),
    "bad-consistency-proof": Meaning("What came does not show that the log only grew.", _ON_ITS_WAY),
    "unsupported-structure": Meaning("The proof is about another kind of log than can be checked here.", _ON_ITS_WAY),
    "other-signer": Meaning(
        "All that was checked was signed by another of the keys that you trust than the provider's own.",
        "Anything about this provider: it may list what it had as another's client.",
    ),
    "signed-malformed": Meaning("What the provider signed is nothing that any honest provider signs.", _OWN_RECORDS),
    "newer-version": Meaning(
        "It is of a newer version of the protocol than this program. Check it with a newer release.",
        "Nothing is shown against the provider: what is not known is not judged.",
    ),
    "malformed": Meaning("The file is damaged or is no file of this kind.", _ON_ITS_WAY),
    "two-histories": Meaning(
        "The provider signed two versions of the same conversation. That is fraud by itself.",
        "It does not show which version is the true one.",
    ),
    "missing-from-log": Meaning(
        "The provider signed a conversation and kept it out of its public log.", "It does not show why."
    ),
    "list-differs": Meaning(
        "The provider's public list promises other records than it hands out.",
        "Any cheating: nobody signs the list as a whole, and an old copy of it does this too.",
    ),
    "sequence-broken": Meaning("Records were removed, reordered or taken from elsewhere.", _OWN_RECORDS),
    "counts-differ": Meaning("The numbers that are billed do not add up with the records.", _OWN_RECORDS),
    "record-invalid": Meaning("A record is not one that any honest provider writes.", _OWN_RECORDS),
    "identity-differs": Meaning("The manifest contradicts the model file that it names.", _OWN_RECORDS),
    "session-differs": Meaning("The evidence belongs to another conversation.", _TAMPERED),
    "manifest-differs": Meaning("The conversation was signed under another manifest.", _OWN_RECORDS),
    "manifest-expired": Meaning("The provider's statement was not valid at that time.", _OWN_RECORDS),
    "incomplete": Meaning("Part of the conversation's log is missing, so it can't be judged yet.", "Any cheating."),
    "interrupted": Meaning(
        "The conversation's log stops in the middle of an answer, as after a crash.", "Any cheating."
    ),
    "no-tokens": Meaning("The conversation has no token, so there was nothing to check.", "Any cheating."),
    "erased": Meaning(
        "The provider says that the conversation was erased, or is no longer kept.",
        "Any cheating; nor that a client wished it.",
    ),
    "key-revoked": Meaning(
        "A key on which it rests was revoked before it was signed: somebody else may have had it by then.",
        "Anything about your provider, or about who signed it.",
    ),
    "untrusted-key": Meaning("Somebody signed it, but nobody whom you trust.", "Anything about your provider."),
    "runtime-impossible": Meaning(
        "The provider states settings under which nobody can have run the model.",
        "It does not show how the answer was made in truth.",
    ),
    "model-differs": Meaning("Your model file is another one, so it can't tell.", "Any cheating."),
    "fingerprint-differs": Meaning("Your machine rounds numbers otherwise than the provider's.", "Any cheating."),
    "fingerprint-unexplained": Meaning(
        "The provider says that it computes with the very program that computes here, and states other numbers.",
        "Cheating: another kind of processor might explain it. The provider should.",
    ),
    "not-invariant": Meaning("Under these settings even honest numbers can't be repeated.", "Any cheating."),
    "not-raw-logits": Meaning("The provider's records hold rounded numbers that can't be repeated.", "Any cheating."),
    "other-turn": Meaning(
        "Your own copy is of another answer of this conversation than the receipt.", "Anything about the provider."
    ),
    "stream-differs": Meaning(
        "The event stream that you kept does not go with this receipt: it is of another answer, or not as it came.",
        "Anything about the provider: nobody signs a stream as a whole.",
    ),
    "no-evidence": Meaning(
        "The provider did not hand over the records that were asked for.", "Any cheating; but a buyer may insist."
    ),
    "log-differs": Meaning(
        "The proof that the conversation is in the provider's public log is from another log.",
        "Why. Keep the receipt and the log's checkpoint: both are signed.",
    ),
    "too-few-witnesses": Meaning(
        "Too few of the witnesses whom you trust are known to have seen this log: it may be one for you alone.",
        "That it is; witnesses may not have answered yet.",
    ),
    "unreachable": Meaning("The provider did not answer properly.", "Any cheating; but a buyer may insist."),
    "auditor-crashed": Meaning("This machine could not run the model.", "Anything about the provider."),
    "nothing-checked": Meaning("Nothing was recomputed, so nothing was shown.", "Any cheating."),
    "not-replayed": Meaning("Draws could not be replayed, so nothing was shown.", "Any cheating."),
    "too-little-evidence": Meaning(
        "The conversations compared so far don't tell honest rounding from cheating.", "Any cheating."
    ),
    "environment": Meaning("This machine could not carry the audit out.", "Anything about the provider."),
}

_HOLDS = Meaning("Every check that was made holds.", "Anything that is listed as not shown.")
_OTHER = Meaning("The evidence does not hold.", _TAMPERED)
_UNDECIDED = Meaning("The audit could not be decided.", "Anything about the provider.")


def meaning(code: str | None) -> Meaning:
    """The meaning of a reason code, also of one that is not listed here; None is a pass."""
    if code is None:
        return _HOLDS
    known = MEANINGS.get(code)
    return known or (_UNDECIDED if code in INCONCLUSIVE_CODES else _OTHER)
