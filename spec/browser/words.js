// What the codes mean for a person, in the words of `verifiable audit`, and what to do. The whole list, with what each
// does not prove, is in spec/reason-codes.md.

/** Codes under which nothing is shown against the provider. */
const INCONCLUSIVE = ["incomplete", "untrusted-key", "nothing-checked", "page-fault"];

const MEANING = {
  malformed: "The file is damaged or is no file of this kind. That doesn’t show who changed it: get it again.",
  "untrusted-key":
    "Somebody signed it, but nobody whom you trust. Either the key that you entered or the file is another provider’s.",
  "bad-signature": "The signature does not fit: the file was changed or is not the provider’s.",
  "unsupported-algorithm": "It is signed by another method than the protocol allows.",
  "wrong-type": "A signature that was made for another kind of object is being passed off as this one.",
  "manifest-differs": "The conversation was signed under another manifest.",
  "manifest-expired": "The provider’s statement was not valid at that time.",
  "time-reversed": "The provider signed times that contradict each other.",
  "root-differs": "The records in the file are not those that were signed. A part was changed, moved or left out.",
  "sequence-broken": "Records were removed, reordered or taken from elsewhere.",
  "counts-differ": "The numbers that are billed do not add up with the records.",
  incomplete:
    "Part of the conversation’s log is missing, so it can’t be judged yet. The provider may have stopped, or be holding " +
    "it back: ask for the rest.",
  "text-differs": "The text is not the text that the provider committed to. Compare it to the last character.",
  "log-differs": "The receipt claims a public log that the provider’s statement does not name.",
  "wrong-origin": "The proof is from another log than the provider’s.",
  "bad-inclusion-proof": "The proof does not show that the provider’s log holds this session.",
  "salt-differs": "The secret in the evidence does not open the records that were signed.",
  "request-differs": "The provider committed to another request than the evidence shows.",
  "session-differs": "The evidence belongs to another conversation.",
  "parameters-differ": "The answer was drawn with other settings than the client asked for.",
  "nonce-differs": "The client’s nonce was not used, so the provider could have tried draws until it liked one.",
  "record-invalid": "A record is not one that any honest provider writes.",
  "evidence-differs":
    "The tokens in the evidence are not those that were signed. That doesn’t show who changed them: get it again.",
  "token-not-sampled": "A word of the answer was replaced after the model had computed its choice.",
  "temperature-differs": "The answer was drawn with more or less chance than the client asked for, in every token.",
  "text-not-sampled":
    "The answer was not drawn from this model: most likely a cheaper one wrote it, and this one only scored it.",
  "nothing-checked": "What the file shows does not contradict itself, so it proves nothing against the provider.",
  "missing-from-log": "The provider signed a conversation and kept it out of its public log.",
  "two-histories":
    "The provider signed two versions of the same conversation. That is fraud by itself. Keep both files: together they " +
    "prove it.",
};

const FINISH = ["it ended", "cut by length", "cancelled", "an error"];
const NONCE = ["the client’s", "the request’s seed", "the provider’s"];

/** What a reader might take for shown, and is not. */
function notShown({ session, text, log, replayed, left }) {
  const notes = ["That the model really computed these tokens. An audit shows it, by running the model again."];
  const shopped = session.spans.filter(({ turn }) => turn.nonceSource === 2).map(({ turn }) => turn.turn);
  if (shopped.length)
    notes.push(
      `Turn ${shopped.join(", ")}: no nonce of the client’s, so the provider could have tried several draws.`,
    );
  if (text === null) notes.push("That the text you have is the one committed: you entered none.");
  if (session.turns && !replayed && !left.length)
    notes.push("That each token follows from its record: the evidence shows no records.");
  if (left.length) {
    const why = "penalties, biases or a grammar were at work, and what they depend on is not all here";
    notes.push(`Turn ${left.join(", ")}: that each token follows from its record; ${why}.`);
  }
  if (!log)
    notes.push("That the provider shows everybody the same session: the receipt has no proof from a public log.");
  if (!session.closed) notes.push("What follows: the session is still open.");
  if (session.manifest.valueKind === 1)
    notes.push("An exact audit is impossible: this provider reports log-probabilities of another engine.");
  else if (!session.manifest.invariant)
    notes.push("An exact audit is impossible: the provider’s results depend on how requests are batched.");
  return notes;
}
