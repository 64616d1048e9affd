// What the codes mean for a person. The whole list, with what each does not prove, is in spec/reason-codes.md.

/** Codes under which nothing is shown against the provider. */
const INCONCLUSIVE = ["incomplete", "untrusted-key", "nothing-checked", "page-fault"];

const MEANING = {
  malformed: "The file is damaged, was edited, or is something else. That says nothing of who did it: get it again.",
  "untrusted-key": "It was not signed by the key that you entered. Either the key or the file is another provider’s.",
  "bad-signature": "The signed bytes were changed after signing, or somebody else signed them.",
  "unsupported-algorithm": "It is signed by another method than the protocol allows.",
  "wrong-type": "A signature that was made for another kind of object is being passed off as this one.",
  "manifest-differs": "The session ran under another statement of model and settings than the one in the file.",
  "manifest-expired": "The provider’s statement was not valid at the time of the session.",
  "time-reversed": "The provider signed times that contradict each other.",
  "root-differs": "What is shown is not what the provider signed: a part was changed, moved or left out.",
  "sequence-broken": "Parts of the session were removed, reordered, or taken from another session.",
  "counts-differ": "Counts that the provider signed contradict each other, such as the tokens that it billed.",
  incomplete: "A part is missing. The provider may have stopped, or may be holding it back: ask for the rest.",
  "text-differs": "The text is not the one that the provider committed to. Compare it to the last character.",
  "log-differs": "The receipt claims a public log that the provider’s statement does not name.",
  "wrong-origin": "The proof is from another log than the provider’s.",
  "bad-inclusion-proof": "The proof does not show that the provider’s log holds this session.",
  "salt-differs": "The evidence opens other leaves than those that were signed.",
  "request-differs": "The provider answered another request than the one shown.",
  "session-differs": "This belongs to another session.",
  "parameters-differ": "The provider did not use the settings that the request asked for.",
  "nonce-differs": "The draw does not depend on your nonce, so the provider could have tried several answers.",
  "record-invalid": "A record of a token contradicts the session or the model that it is said to come from.",
  "evidence-differs": "The evidence was changed on its way, by whom it doesn’t show: get it again.",
  "token-not-sampled": "A token is not the one that its own record and the key of the draw give: it was changed.",
  "temperature-differs": "The answer was drawn at another temperature than was asked for.",
  "text-not-sampled": "The answer was not drawn from the records that it comes with.",
  "nothing-checked": "What the file shows does not contradict itself, so it proves nothing against the provider.",
  "missing-from-log": "The provider kept a conversation out of its public record.",
  "two-histories": "The provider signed two versions of one session. Keep both files: together they prove it.",
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
