// The numbered steps of the protocol, in their order. Each is noted for people; the first that fails ends the check.

const differs = (code, what, expected, found) => {
  if (!same(expected, found)) throw new Failure(code, what, hex(expected), hex(found));
};

/** Keeps a line for each step that was made, and throws the failure of the one that did not hold. */
class Report {
  steps = [];
  /** What the steps that follow are about. */
  about = "";
  make(name, step, detail) {
    try {
      const result = step();
      this.steps.push({
        about: this.about,
        name,
        passed: true,
        detail: typeof detail === "function" ? detail(result) : detail,
      });
      return result;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.steps.push({ about: this.about, name, passed: false, detail: error.message, failure: error });
      throw error;
    }
  }
}

/** How to name a provider: by the trusted key, and what its holder calls itself where that is another name. */
const signedBy = (key, manifest, trusted) => {
  const chain = Chain.of(trusted);
  const called = manifest.provider === chain.rootOf(key).name ? "" : `, which calls itself ${manifest.provider}`;
  return chain.nameOf(key) + called;
};

/** Steps that receipts and evidence share: signatures, manifest, tree, leaves, structure, times. */
function checkSession(file, trusted, report) {
  const chain = Chain.of(trusted);
  const { key, manifest } = report.make(
    "Manifest signed by a provider that you trust",
    () => {
      const opened = openEnvelope(file.manifest, chain, MANIFEST_TYPE);
      return { key: opened.key, manifest: readingSigned(() => parseManifest(opened.payload)) };
    },
    (found) => signedBy(found.key, found.manifest, chain),
  );
  const { sessionKey, ...head } = report.make(
    "Head of the session log signed by a key of that manifest",
    () => {
      const { payload, key: sessionKey } = openEnvelope(file.head, manifest.sessionKeys, HEAD_TYPE);
      const found = { ...readingSigned(() => parseHead(payload)), sessionKey };
      if (found.interim) throw new Failure("incomplete", "the head was signed in the middle of a turn");
      const what = "the head was made under another manifest than the one beside it";
      differs("other-manifest", what, manifest.digest, found.manifest);
      return found;
    },
    (found) => `session ${hex(found.session)}, ${found.size} leaves`,
  );
  const hidden = report.make(
    "The leaves shown are in the signed tree",
    () => checkOpening(file.opening, head),
    () => `${file.opening.leaves.length} leaves and ${file.opening.proof.length} hashes give the signed root`,
  );
  const leaves = report.make(
    "Every leaf is well formed",
    () =>
      file.opening.leaves.map(({ index, data }) => {
        const leaf = readingSigned(() => parseLeaf(data));
        if (leaf.kind === "token" && (leaf.seq !== index || !same(leaf.session, head.session))) {
          throw new Failure(
            "sequence-broken",
            `the record at leaf ${index} belongs to another place or another session`,
          );
        }
        return { index, leaf };
      }),
    "in its only spelling",
  );
  const tokens = leaves.filter(({ leaf }) => leaf.kind === "token").map(({ leaf }) => leaf);
  const marks = leaves.filter(({ leaf }) => leaf.kind !== "token");
  const spans = report.make(
    "The session log is complete and in order",
    () => checkStructure(marks, head.size, head.session, tokens.at(-1)),
    (found) => `${found.length} finished turn${found.length === 1 ? "" : "s"}`,
  );
  const opened = marks[0].leaf;
  report.make(
    "Opened and signed under this manifest, while it was valid",
    () => {
      differs("manifest-differs", "the session was opened under another manifest", manifest.digest, opened.manifest);
      for (const [time, what] of [
        [opened.time, "session's opening"],
        [head.time, "head"],
      ]) {
        if (time < manifest.validFrom || time > manifest.validTo) {
          throw new Failure("manifest-expired", `the manifest was not valid at the time of the ${what}`);
        }
      }
      if (head.time < opened.time) throw new Failure("time-reversed", "the head is older than the session");
    },
    () => `opened ${showTime(opened.time)}, signed ${showTime(head.time)}`,
  );
  const closed = marks.at(-1).leaf.kind === "close";
  return { key, sessionKey, chain, manifest, head, hidden, leaves: file.opening.leaves, opened, tokens, spans, closed };
}

function checkOpening({ leaves, proof }, { size, root }) {
  if (!leaves.length || leaves.at(-1).index >= size)
    throw new Failure("root-differs", "leaves lie outside the signed size");
  try {
    const found = rootFromMultiproof(
      size,
      leaves.map(({ index, data }) => [index, leafHash(data)]),
      proof,
    );
    differs("root-differs", "the leaves do not give the signed root", root, found.root);
    return found.hidden;
  } catch (error) {
    if (error.code !== "bad-inclusion-proof") throw error;
    throw new Failure("root-differs", error.message);
  }
}

/** The turns of a log, from every leaf of it that is not a token, and the last token shown. */
function checkStructure(marks, size, session, token) {
  const broken = (where, expected) =>
    new Failure("sequence-broken", `the session log's order is broken at ${where}`, expected);
  for (const { index, leaf } of marks) {
    if (leaf.seq !== index || !same(leaf.session, session))
      throw broken(`leaf ${index}`, "this number and this session");
  }
  if (marks[0]?.index !== 0n) throw hiddenLeaf(0n, "an open leaf");
  if (marks[0].leaf.kind !== "open") throw broken("leaf 0", "an open leaf");
  const spans = [];
  let [at, next] = [1n, 1];
  while (at < size) {
    const leaf = marks[next]?.leaf;
    if (leaf?.seq !== at) {
      if (token?.seq === size - 1n && token.seq === at) throw broken(`leaf ${at}`, "a turn or a close leaf");
      throw hiddenLeaf(at, "a turn or a close leaf");
    }
    if (leaf.kind === "close") {
      if (at !== size - 1n) throw broken(`leaf ${at}`, "nothing after the close leaf");
      count("the close leaf's turns", leaf.turns === spans.length);
      return spans;
    }
    if (leaf.kind !== "turn") throw broken(`leaf ${at}`, "a turn or a close leaf");
    const end = marks[next + 1]?.leaf;
    if (!end && leaf.turn === spans.length) throw unended(leaf, size, token);
    spans.push(checkSpan(leaf, end, spans.length, broken));
    at = spans.at(-1).end.seq + 1n;
    next += 2;
  }
  if (next < marks.length || at !== size) throw broken(`leaf ${at}`, `a log of ${size} leaves`);
  return spans;
}

/** Nobody signs which leaves are shown: one that is not accuses nobody. */
const hiddenLeaf = (at, expected) =>
  new Failure("incomplete", `a leaf of the session log is not shown: leaf ${at} or a later one`, expected);

function unended({ turn, seq }, size, token) {
  if (seq === size - 1n || (token?.seq === size - 1n && token.turn === turn))
    return new Failure("interrupted", `the log stops in turn ${turn}: the provider stopped there, or crashed`);
  return new Failure("incomplete", `turn ${turn} has no end: the provider holds a part back, or cut the log short`);
}

function count(what, holds) {
  if (!holds) throw new Failure("counts-differ", `${what} do not add up`);
}

function checkSpan(turn, end, number, broken) {
  count("the turn's number", turn.turn === number);
  if (end?.kind !== "end" || end.turn !== number) {
    if (!end || end.seq > turn.seq + 1n) throw hiddenLeaf(turn.seq + 1n, `the end of turn ${number}, or all of its tokens`);
    throw broken(`leaf ${turn.seq}`, `the end of turn ${number}`);
  }
  const tokens = end.completionCount;
  count(`the tokens of turn ${number}`, BigInt(tokens) === end.seq - turn.seq - 1n);
  count(`the prompt tokens of turn ${number}`, end.promptCount === turn.promptCount);
  count(`the tokens of turn ${number}`, tokens <= turn.params.maxTokens);
  const full = tokens === turn.params.maxTokens;
  count(`the tokens of turn ${number}, cut by length`, end.finish !== 1 || full);
  count(`the tokens of turn ${number}, cut before its length`, end.finish < 2 || !full);
  count(`the drafted or cached tokens of turn ${number}`, end.accepted <= Math.min(end.drafted, tokens));
  count(`the drafted or cached tokens of turn ${number}`, turn.cached < Math.max(turn.promptCount, 1));
  return { turn, end, first: turn.seq + 1n };
}

/** Check a receipt, and the text of its turn where there is one. */
function checkReceipt(receipt, trusted, text, report) {
  const session = checkSession(receipt, trusted, report);
  if (session.tokens.length) throw malformed("receipt", "no token leaves");
  report.make(
    "The receipt's turn is in the log",
    () => {
      if (receipt.turn >= session.spans.length)
        throw new Failure("incomplete", "the receipt's turn is not in the log");
    },
    `turn ${receipt.turn}`,
  );
  if (text != null) checkText(session, receipt.turn, text, report);
  session.logged = null;
  if (receipt.log) {
    session.logged = report.make(
      "The head stands under a checkpoint that the log’s key signed",
      () => {
        if (!session.manifest.log)
          throw new Failure("untrusted-key", "the receipt claims a log that the manifest does not name");
        return checkTlogProof(fromUtf8(receipt.log, "log proof"), receipt.head, session.chain.logs(session.manifest.log));
      },
      (found) => `entry ${found.index} of ${found.size} in ${session.manifest.log.name}`,
    );
  }
  return session;
}

/** Check that so many of the witnesses whom the reader trusts cosigned the checkpoint of a receipt's log proof. */
function checkQuorum({ logged }, { witnesses, needed }, report) {
  report.make(
    "Witnesses that you trust cosigned that checkpoint",
    () => {
      const names = logged ? openCheckpoint(logged.note, logged.log, witnesses).witnesses : [];
      if (logged && names.length >= needed) return names;
      const found = logged ? names.join(", ") || "none" : "no proof";
      const what = logged ? "checkpoint is cosigned by too few witnesses" : "the receipt carries no log proof";
      throw new Failure("too-few-witnesses", what, `${needed} of ${witnesses.length}`, found);
    },
    (names) => names.join(", "),
  );
}

/** Check that a text is what a turn committed to. */
function checkText(session, turn, text, report) {
  report.make(
    "Your text is the text that was committed",
    () => {
      if (turn >= session.spans.length) throw new Failure("incomplete", `there is no turn ${turn}`);
      const committed = session.spans[turn].end.text;
      const digest = sha256(utf8(text));
      if (same(committed, digest)) return;
      notAnother(turn, "text", session.spans.filter(({ end }) => same(end.text, digest)));
      const only = nearlySame(text, committed);
      const what = `your text is not the text that was committed${only ? `: ${only} only` : ""}`;
      throw new Failure("text-differs", `${what}. Look at your own copy first`, hex(committed), hex(digest));
    },
    "every byte of it",
  );
}

/** A client's copy that is what another turn of the session committed to is a mistake of the client's. */
function notAnother(turn, what, spans) {
  if (!spans.length) return;
  const other = spans.at(-1).turn.turn;
  throw new Failure("other-turn", `your ${what} is that of turn ${other}, not of turn ${turn}`);
}

/** Check evidence: what a receipt shows, and for each turn opened that all follows from its request. */
function checkEvidence(evidence, trusted, report) {
  const session = checkSession(evidence, trusted, report);
  session.turns = evidence.turns.map((part) => {
    const span = session.spans[part.turn];
    if (!span) throw new Failure("incomplete", `the evidence opens turn ${part.turn}, which the log lacks`);
    const shown = session.tokens.filter(({ seq }) => seq >= span.first && seq < span.end.seq);
    const { suppressed } = session.manifest;
    const turn = { ...span, tokens: part.tokens, shown, suppressed, request: null };
    turn.request = report.make(
      `Turn ${part.turn}: request, salts, parameters and nonce follow from the request committed to`,
      () => checkAsked(session, turn, part),
      () => {
        const whose = ["the request's", "the request's seed", "the provider's: it could have tried several"][
          span.turn.nonceSource
        ];
        return `nonce: ${whose}`;
      },
    );
    report.make(
      `Turn ${part.turn}: token ids, marks and records fit the signed end`,
      () => checkTokens(session, turn, evidence.kind),
      `${span.end.completionCount} tokens`,
    );
    return turn;
  });
  const opened = session.turns.reduce((sum, turn) => sum + turn.shown.length, 0);
  if (opened !== session.tokens.length) throw malformed("evidence", "every record in a turn that it opens");
  return session;
}

/** A turn stands where its request has its place, under the manifest that the request pins. */
function checkPlace({ manifest, head, spans }, turn, request) {
  const session = hex(head.session);
  let held = request.session === session && turn > 0;
  if (request.session === null) held = turn === 0 && spans.length === 1;
  else if (request.session === "new") held = turn === 0;
  if (!held || (request.turn ?? turn) !== turn) {
    const wanted = `session: ${request.session ?? "one of this turn alone"}, turn: ${request.turn ?? "not said"}`;
    const found = `turn ${turn} of ${spans.length} in session ${session}`;
    throw new Failure("session-differs", `turn ${turn} stands elsewhere than its request says`, wanted, found);
  }
  const what = `the request of turn ${turn} pins another manifest`;
  if (request.manifest) differs("manifest-differs", what, request.manifest, manifest.digest);
}

function checkAsked({ manifest, head, spans }, { turn, end, shown }, { secret, request: bytes }) {
  const what = `the request of turn ${turn.turn} in the evidence is not the one that was committed to`;
  differs("evidence-differs", what, turn.request, sha256(bytes));
  const request = readingSigned(() => readCanonical(bytes));
  for (const leaf of [turn, end, ...shown]) {
    differs(
      "salt-differs",
      `the salt of leaf ${leaf.seq}`,
      hmacSha256(secret, bigEndian(leaf.seq, 8)).subarray(0, 16),
      leaf.salt,
    );
  }
  checkFollows({ manifest, head, spans }, turn, request);
  return request;
}

/** Steps 11 to 13: a turn's place, stop strings, parameters and nonce follow from the request that it answers. */
function checkFollows(session, turn, request) {
  const { manifest } = session;
  const where = `of turn ${turn.turn}`;
  checkPlace(session, turn.turn, request);
  differs("parameters-differ", `the stop strings ${where}`, stopDigest(request.stops), turn.stops);
  const asked = paramsOf(request, manifest.defaults, manifest.k, manifest.context, turn.promptCount);
  if (!asked) throw new Failure("counts-differ", `the prompt ${where} does not fit the context`);
  for (const [name, value] of Object.entries(asked)) {
    if (JSON.stringify(turn.params[name]) !== JSON.stringify(value))
      throw new Failure("parameters-differ", `${name} ${where} is not what the request gives`, value, turn.params[name]);
  }
  const nonce = request.nonce ?? (request.nonceSource === 1 ? bigEndian(request.seed, 8) : turn.nonce);
  if (turn.nonceSource !== request.nonceSource || !same(turn.nonce, nonce))
    throw new Failure("nonce-differs", `the nonce ${where} is not the request's`);
}

function checkTokens({ manifest }, span, kind) {
  const { turn, end, shown, tokens, first } = span;
  if (tokens && (kind !== "tokens" || shown.length))
    throw malformed("evidence", "packed tokens only in evidence of kind tokens");
  const { vocabulary } = manifest;
  const invalid = (why) => new Failure("record-invalid", `turn ${turn.turn}: ${why}`);
  for (const record of shown) {
    const position = BigInt(turn.promptCount) + record.seq - first;
    const fits =
      record.ids.length === Math.min(manifest.k, vocabulary) &&
      record.turn === turn.turn &&
      BigInt(record.position) === position;
    if (!fits) throw invalid(`the record at leaf ${record.seq} has another turn, position or count of entries`);
    if (Math.max(record.token, ...record.ids) >= vocabulary) throw invalid("a token id past the vocabulary");
  }
  if (tokens) {
    const width = [1, 2, 3, 4].find((bytes) => vocabulary <= 256 ** bytes);
    if (tokens.width !== width) throw malformed("packed token width", width, tokens.width);
    const digest = tokensDigest(tokens.ids, tokens.sources, tokens.fresh);
    differs(
      "evidence-differs",
      "token ids or marks in the evidence are not those that were committed",
      end.tokens,
      digest,
    );
    if (tokens.ids.some((id) => id >= vocabulary)) throw invalid("a token id past the vocabulary");
    checkMarks(span, tokens.sources, tokens.steps);
  }
  if (kind === "full") {
    if (shown.length !== end.completionCount)
      throw new Failure("incomplete", `the evidence hides records of turn ${turn.turn}`);
    const sources = shown.map(({ source }) => source);
    checkMarks(
      span,
      sources,
      shown.map(({ step, row }) => [step, row]),
    );
    const digest = tokensDigest(
      shown.map(({ token }) => token),
      sources,
      shown.map(({ row }) => row === 0),
    );
    if (!same(digest, end.tokens)) throw invalid("the end contradicts the records");
  } else if (kind === "tokens" && !tokens)
    throw malformed("evidence of kind tokens", "the packed tokens of each turn");
}

/** A step's rows go on only past accepted drafts, and the end counts those. */
function checkMarks({ turn, end }, sources, steps) {
  let [step, row, fresh] = [-1, -1, true];
  steps.forEach(([atStep, atRow], i) => {
    const starts = atStep === step + 1 && atRow === 0;
    if (!starts && (fresh || atStep !== step || atRow !== row + 1)) {
      throw new Failure(
        "sequence-broken",
        `token ${i} of turn ${turn.turn} is in another step or row than can follow`,
      );
    }
    [step, row, fresh] = [atStep, atRow, sources[i] !== 1];
  });
  count(`the tokens of turn ${turn.turn}`, steps.length === end.completionCount);
  count(`the accepted drafts of turn ${turn.turn}`, sources.filter((source) => source === 1).length === end.accepted);
}

/** Replay what one opened turn shows; returns how many records could be replayed. */
function checkReplay({ turn, end, shown, suppressed }) {
  const seen = shown.map((record) => withoutSuppressed(record, suppressed));
  return replayTurn(turn, seen, shown.length === end.completionCount);
}

/** Check that evidence answers for a receipt: that it opens its turn of its session. */
function checkAnswers(held, turn, session) {
  const other = (what) => new Failure("no-evidence", `the evidence answers another question than was asked: ${what}`);
  if (!same(held.head.session, session.head.session)) throw other("another session than the receipt's");
  if (!same(held.chain.rootOf(held.key).kid, session.chain.rootOf(session.key).kid)) throw other("another provider's session");
  if (!session.turns.some((opened) => opened.turn.turn === turn)) throw other("other turns than the receipt's");
}

/** Two heads of one session must tell one history: compare what both show, as leaves or as their hashes. */
function checkSameHistory(one, other) {
  const two = (where) =>
    new Failure("two-histories", `the provider signed two histories of one session: ${where} differ`);
  if (one.head.size === other.head.size && !same(one.head.root, other.head.root)) throw two("the roots");
  for (const [a, b] of [
    [one, other],
    [other, one],
  ]) {
    const leaves = new Map(b.leaves.map(({ index, data }) => [index, leafHash(data)]));
    for (const { index, data } of a.leaves) {
      if (leaves.has(index) && !same(leaves.get(index), leafHash(data))) throw two(`leaves ${index}`);
    }
    const shown = new Set(a.leaves.map(({ index }) => index));
    for (const { index, data } of b.leaves) {
      const isToken = data[1] === 2; // after the array's head comes the kind; all leaves but tokens are shown
      if (!isToken && index < a.head.size && !shown.has(index)) throw two(`leaves ${index}`);
    }
    for (const [low, high, hash] of a.hidden) {
      const twin = b.hidden.find((subtree) => subtree[0] === low && subtree[1] === high);
      const covered = [];
      for (let i = low; i < high && leaves.has(i); i++) covered.push(leaves.get(i));
      const theirs = twin ? twin[2] : BigInt(covered.length) === high - low ? treeRoot(covered) : null;
      if (theirs && !same(theirs, hash)) throw two(`leaves ${low} to ${high - 1n}`);
    }
  }
}

function showTime(milliseconds) {
  const date = new Date(Number(milliseconds));
  return Number.isNaN(date.getTime())
    ? `${milliseconds} ms after 1970`
    : date
        .toISOString()
        .replace("T", " ")
        .replace(/\.\d+Z/, " UTC");
}
