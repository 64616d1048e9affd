// What the codes mean for a person, in the words of `verifiable audit`, and what to do. The whole list, with what each
// does not prove, is in spec/reason-codes.md.

/** Codes under which nothing is shown against the provider: the auditor's, and this page's own. */
const INCONCLUSIVE = [...INCONCLUSIVE_CODES, "page-fault", "policy"];

const MEANING = {
  policy: "What you chose does not go together, which says nothing about the provider. Look at it again.",
  malformed:
    "The file is damaged or is no file of this kind. That is not the provider’s word, whoever changed it: get it again.",
  "newer-version": "It is of a newer version of the protocol than this program. Check it with a newer release.",
  "untrusted-key":
    "Somebody signed it, but nobody whom you trust. Either the key that you entered or the file is another provider’s; or " +
    "the provider changed its key: choose its keys file too, which its address gives under /v1/keys.",
  "key-revoked":
    "A key on which it rests was revoked before it was signed: somebody else may have had it by then.",
  "bad-signature":
    "The signature does not fit: the file was changed on its way, or somebody else signed it. Get it again.",
  "unsupported-algorithm":
    "It is signed by another method than the protocol allows, so nobody vouches for it. Get it again.",
  "wrong-type": "A signature that was made for another kind of object stands in its place. Get it again.",
  "other-manifest": "The statement of model and keys in the file is not the one that was signed for. Get it again.",
  "signed-malformed": "What the provider signed is nothing that any honest provider signs.",
  "manifest-differs": "The conversation was signed under another manifest.",
  "manifest-expired": "The provider’s statement was not valid at that time.",
  "time-reversed": "The provider signed times that contradict each other.",
  "root-differs":
    "The records in the file are not those that were signed: a part was changed, moved or left out. Get it again.",
  "sequence-broken": "Records were removed, reordered or taken from elsewhere.",
  "counts-differ": "The numbers that are billed do not add up with the records.",
  incomplete:
    "Part of the conversation’s log is missing, so it can’t be judged yet. The provider may have stopped, or be holding " +
    "it back: ask for the rest.",
  interrupted:
    "The conversation’s log stops in the middle of an answer, as after a crash. What was not ended can’t be judged.",
  "text-differs": "The text is not the text that the provider committed to. Compare it to the last character.",
  "log-differs":
    "The proof that the conversation is in the provider’s public log is from another log. The provider’s statement names " +
    "none, or not this one.",
  "wrong-origin": "The proof attached is from another log than the provider’s. Get the receipt again.",
  "bad-inclusion-proof":
    "The proof attached does not show that the provider’s log holds this session. Get the receipt again.",
  "too-few-witnesses":
    "Too few of the witnesses whom you trust are known to have seen this log: it may be one for you alone. Ask for the " +
    "receipt again later.",
  "salt-differs": "The secret in the evidence does not open the records that were signed. Get it again.",
  "request-differs": "The provider committed to another request than this one.",
  "session-differs": "The evidence belongs to another conversation.",
  "parameters-differ": "The answer was drawn with other settings than the request has.",
  "nonce-differs": "The request’s nonce was not used, so the provider could have tried draws until it liked one.",
  "other-turn": "Your own copy is of another answer of this conversation than the receipt.",
  "time-differs": "The conversation was not opened, or the answer not signed, when your request was on its way.",
  "no-evidence": "The provider did not hand over the records that were asked for.",
  "record-invalid": "A record is not one that any honest provider writes.",
  "evidence-differs":
    "The tokens or the request in the evidence are not those that were signed. That doesn’t show who changed them: get " +
    "it again.",
  "token-not-sampled": "A word of the answer was replaced after the model had computed its choice.",
  "temperature-differs": "The answer was drawn with more or less chance than the request says, in every token.",
  "text-not-sampled":
    "The answer was not drawn from this model: most likely a cheaper one wrote it, and this one only scored it.",
  "nothing-checked": "What the file shows does not contradict itself, so it proves nothing against the provider.",
  "missing-from-log": "The provider signed a conversation and kept it out of its public log.",
  "two-histories":
    "The provider signed two versions of the same conversation. That is fraud by itself. Keep both files: together they " +
    "prove it.",
};

const FINISH = ["it ended", "cut by length", "cancelled", "an error"];
const NONCE = ["the request’s", "the request’s seed", "the provider’s"];

/** What a reader might take for shown, and is not: ids of CAVEATS, details, and the turns of which each is said. */
function notShown({ session, held, turn, signed, text, exchange, logged, log, replayed, left, later }) {
  const notes = [["model-not-run"]];
  if (!exchange) notes.push(["request-not-given"]);
  else if (exchange.received === null || exchange.sent === null) notes.push(["times-not-given"]);
  else if (turn > 0 && signed > BigInt(exchange.received) + SKEW) notes.push(["answer-time-not-shown"]);
  if (text === null) notes.push(["text-not-given"]);
  const opened = session.turns?.map(({ turn }) => turn.turn);
  const numbers = (spans) => spans.map(({ turn }) => turn.turn);
  const of = (id, turns) => turns.length && notes.push([id, "", turns]);
  const others = opened?.filter((number) => number !== turn) ?? [];
  if (exchange) of("request-not-given", others);
  if (text !== null) of("text-not-given", others);
  if (!held) notes.push(["receipt-not-given"]);
  if (opened) of("turns-not-opened", numbers(session.spans).filter((number) => !opened.includes(number)));
  const meant = session.turns ?? [session.spans[turn]];
  of("provider-nonce", numbers(meant.filter(({ turn }) => turn.nonceSource === 2)));
  const known = session.turns ?? (exchange ? [{ ...session.spans[turn], request: exchange.request }] : []);
  of("manifest-not-pinned", numbers(known.filter(({ request }) => !request.manifest)));
  of("ending-unexplained", numbers(meant.filter(({ end }) => end.finish > 1)));
  const partly = session.turns?.filter(({ shown, end }) => shown.length < end.completionCount) ?? [];
  if (opened && !replayed && !left.length) notes.push(["records-not-shown"]);
  else of("records-not-replayed", [...new Set([...left, ...numbers(partly)])].sort((a, b) => a - b));
  const alone = "the log’s own key alone signed the proof’s checkpoint: no witness was named";
  if (!log) notes.push(["log-not-shown", logged ? alone : "no proof of it was given"]);
  for (const what of later) notes.push(["key-revoked-later", what]);
  if (!session.closed) notes.push(["session-open"]);
  if (session.manifest.valueKind === 1) notes.push(["not-raw-logits"]);
  else if (!session.manifest.invariant) notes.push(["not-invariant"]);
  return notes.map(([id, detail = "", turns = []]) => {
    const what = detail ? `${CAVEATS[id]}: ${detail}` : CAVEATS[id];
    return { id, what: turns.length ? `Turn${turns.length > 1 ? "s" : ""} ${turns.join(", ")}: ${what}` : what };
  });
}
