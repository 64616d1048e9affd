// Runs all checks on what a person gave, step by step, and leaves the browser time to draw between them.

const keysOf = (text, kind = PublicKey) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line && !line.startsWith("#"))
    .map((line) => kind.parse(line));

/** The witnesses that were named, and how many of them must have cosigned: as many as are asked for, or all. */
function quorumOf({ witnesses = "", quorum = "" }) {
  const keys = keysOf(witnesses, WitnessKey);
  const names = new Set(keys.map(({ name }) => name)).size;
  if (!names && !quorum) return null;
  const needed = quorum === "" ? names : Number(quorum);
  if (!(Number.isInteger(needed) && needed >= 1 && needed <= names))
    throw malformed("the number of witnesses", names ? `1 to ${names}` : "keys of witnesses", quorum);
  return { witnesses: keys, needed };
}

/** The browser's own opinion of signatures that held here: "agrees", "differs", or null where it has none. */
async function crossCheck(signatures) {
  try {
    for (const { key, message, signature } of signatures) {
      const imported = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
      if (!(await crypto.subtle.verify({ name: "Ed25519" }, imported, signature, message))) return "differs";
    }
    return "agrees";
  } catch {
    return null; // no secure context, or a browser without Ed25519
  }
}

const breathe = () => new Promise((resolve) => setTimeout(resolve));

/** Run all checks. Returns what the page shows: steps, the failure if there is one, and what was read. */
async function check(given) {
  const report = new Report();
  const found = { steps: report.steps, failure: null, session: null, fraud: null, text: given.text, exchange: null };
  Object.assign(found, { held: false, logged: null, log: false, replayed: 0, left: [], later: [], ignored: [] });
  checkedSignatures.length = 0;
  try {
    const trusted = keysOf(given.trusted);
    if (!trusted.length) throw new Failure("untrusted-key", "No key to trust was entered");
    const keys = new Chain(trusted, given.keys ? parseKeys(given.keys) : []);
    found.ignored = keys.ignored;
    if (given.fraud) found.fraud = proveFraud(given.fraud, keys, report);
    const quorum = quorumOf(given);
    const files = withExchange(given, report);
    Object.assign(found, { text: files.text, exchange: files.exchange });
    if (files.receipt || files.evidence) await checkFiles(files, keys, report, found);
    if (quorum && files.receipt) {
      report.about = "Provider’s log";
      checkQuorum({ logged: found.logged }, quorum, report);
      found.log = true;
    }
    if (found.session) {
      report.about = "Keys";
      found.later = checkRevocations(found.judged, quorum, report);
    }
    await secondOpinion(report);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (report.steps.at(-1)?.failure !== error) {
      const { about } = report;
      report.steps.push({ about, name: "The rest", passed: false, detail: error.message, failure: error });
    }
    found.failure = error;
    found.accusing = report.about === "Fraud file";
  }
  return found;
}

/** What was given, with what an exchange has where it was not given apart. */
function withExchange({ receipt, evidence, text, exchange }, report) {
  if (!exchange) return { receipt, evidence, text, exchange: null };
  report.about = "Exchange";
  const kept = report.make("The exchange is well formed", () => parseExchange(exchange), "as your client wrote it");
  if (receipt && kept.receipt) checkSameAnswer(receipt, kept.receipt);
  return { receipt: receipt ?? kept.receipt, evidence, text: text ?? kept.text, exchange: kept };
}

/** A receipt that was given beside an exchange is of the same answer, by what both say themselves. */
function checkSameAnswer(...files) {
  const [mine, kept] = files.map((bytes) => {
    try {
      const { head, turn } = parseReceipt(bytes);
      return `turn ${turn} of session ${hex(parseHead(parseEnvelope(head).payload).session)}`;
    } catch {
      return null; // what is none is refused with all other checks
    }
  });
  if (mine && kept && mine !== kept)
    throw new Failure("policy", "the exchange is of another answer than the receipt", mine, kept);
}

function proveFraud(bytes, keys, report) {
  report.about = "Fraud file";
  const file = report.make("The file is well formed and undamaged", () => parseFraud(bytes), "its checksum fits");
  return checkFraud(file, keys, report);
}

async function checkFiles({ receipt, evidence, text, exchange }, keys, report, found) {
  let held = null;
  if (receipt) {
    report.about = "Receipt";
    const parsed = report.make(
      "The receipt is well formed and undamaged",
      () => parseReceipt(receipt),
      "its checksum fits",
    );
    held = checkReceipt(parsed, keys, evidence ? null : text, report);
    if (exchange && !evidence) checkRequest({ session: held }, parsed.turn, exchange, null, report);
    Object.assign(found, { session: held, judged: held, held: true, turn: parsed.turn, signed: held.head.time, logged: held.logged, opens: parsed.opens });
  }
  if (!evidence) return;
  await breathe();
  report.about = "Evidence";
  const parsed = report.make(
    "The evidence is well formed and undamaged",
    () => parseEvidence(evidence),
    "its checksum fits",
  );
  const session = checkEvidence(parsed, keys, report);
  if (held) {
    const answers = () => checkAnswers(held, found.turn, session);
    report.make("It opens the receipt’s turn of its session", answers, `turn ${found.turn}`);
    report.make("It tells the same history as the receipt", () => checkSameHistory(held, session), "of this session");
  }
  const spans = held?.spans.length > session.spans.length ? held.spans : session.spans;
  found.session = { ...session, spans };
  found.judged = held ?? session;
  found.signed = (held ?? session).head.time;
  if (!held) found.turn = turnMeant(session.turns, exchange, text);
  if (text !== null) checkText(found.session, found.turn, text, report);
  if (exchange) {
    const { request = null } = session.turns.find(({ turn }) => turn.turn === found.turn) ?? {};
    checkRequest(found, found.turn, exchange, request, report);
  }
  for (const opened of session.turns.filter(({ shown }) => shown.length)) {
    await breathe();
    replayOne(opened, report, found);
  }
}

/** The turn that a copy is of, where no receipt says it: the last opened that it fits, else the last. */
function turnMeant(turns, exchange, text) {
  const digest = text === null ? null : sha256(utf8(text));
  const fits = ({ turn, end }) =>
    exchange ? same(turn.request, exchange.request.digest) : digest !== null && same(end.text, digest);
  return (turns.findLast(fits) ?? turns.at(-1))?.turn.turn ?? 0;
}

function checkRequest({ session, signed }, turn, exchange, committed, report) {
  const timed = exchange.received !== null || exchange.sent !== null;
  const detail = timed ? "request and times" : "request";
  const step = () => checkCopy(session, turn, exchange, committed, signed);
  report.make("Your request is the one that was committed to", step, detail);
}

function replayOne(opened, report, found) {
  const { turn } = opened.turn;
  const { active, vocabulary } = processorsOf(opened.turn.params);
  if (active && (vocabulary || opened.shown.length < opened.end.completionCount)) {
    found.left.push(turn); // not replayed, and not to be counted as replayed
    return;
  }
  const detail = `${opened.shown.length} of ${opened.end.completionCount} tokens`;
  const name = `Turn ${turn}: each token shown follows from its record`;
  found.replayed += report.make(name, () => checkReplay(opened), detail);
}

async function secondOpinion(report) {
  report.about = "This page";
  const opinion = await crossCheck(checkedSignatures);
  if (!opinion) return;
  const agree = () => {
    if (opinion !== "differs") return;
    throw new Failure("page-fault", "your browser’s Ed25519 and this page’s disagree: use another browser");
  };
  report.make("Your browser’s own cryptography agrees", agree, `${checkedSignatures.length} signatures`);
}
