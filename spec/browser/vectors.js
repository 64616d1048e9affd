// Runs the vector files of spec/vectors. Tests call `runVectors`; people can, from the browser's console.

const vectorTrust = (entry) => entry.trusted.map((text) => PublicKey.parse(text));
const vectorBytes = (entry) => (entry.text === undefined ? fromHex(entry.input) : utf8(entry.text));
const plain = (value) =>
  typeof value === "bigint" ? Number(value) : value instanceof Uint8Array ? hex(value) : value;
const vectorParams = (params) => [
  params.temperature,
  params.topK,
  params.topP,
  params.minP,
  params.maxTokens,
  params.repeatPenalty,
  params.repeatLastN,
  params.frequencyPenalty,
  params.presencePenalty,
  params.logitBias,
  params.ignoreEos,
  params.constraint,
];

/** A decoded item as the outcome of a CBOR vector shows it. */
function showItem(value) {
  if (typeof value === "bigint") return { int: String(value) };
  if (typeof value === "string") return { text: value };
  if (value instanceof Uint8Array) return { bytes: hex(value) };
  if (Array.isArray(value)) return value.map(showItem);
  if (value instanceof CborMap) return { map: value.pairs.map(([key, item]) => [showItem(key), showItem(item)]) };
  if (value instanceof Tagged) return { tag: value.tag, value: showItem(value.value) };
  if (typeof value !== "number") return value;
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  return { float: hex(new Uint8Array(view.buffer)) };
}

/** A session's lot from the SHA-256 of its place in the draw: protocol.md §10.5. */
function weighedLot(digest, weight) {
  const drawn = bigFromBytes(digest.subarray(0, 16)) | 1n;
  const whole = BigInt(drawn.toString(2).length - 1);
  let [rest, fraction] = [drawn << (127n - whole), 0n];
  for (let digit = 0; digit < 64; digit++) {
    rest = (rest * rest) >> 127n;
    const over = rest >> 128n;
    rest >>= over;
    fraction = 2n * fraction + over;
  }
  return ((((128n - whole) << 64n) - fraction) << 64n) / weight;
}

const OPERATIONS = {
  cbor: (entry) => showItem(decodeCbor(fromHex(entry.input), { tags: entry.tags })),
  key(entry) {
    const key = PublicKey.parse(entry.vkey);
    return { name: key.name, key: hex(key.bytes), kid: hex(key.kid) };
  },
  signature(entry) {
    new PublicKey("vectors.example", fromHex(entry.key)).verify(fromHex(entry.message), fromHex(entry.signature));
    return true;
  },
  envelope(entry) {
    const { payload, key } = openEnvelope(fromHex(entry.input), vectorTrust(entry), entry.typ);
    return { payload: hex(payload), signer: key.name };
  },
  tree(entry) {
    const proof = entry.proof?.map(fromHex);
    const [size, root] = [BigInt(entry.size ?? 0), entry.root && fromHex(entry.root)];
    if (entry.what === "root") return hex(treeRoot(entry.entries.map((item) => leafHash(fromHex(item)))));
    if (entry.what === "multiproof") {
      const leaves = entry.leaves.map(([index, leaf]) => [BigInt(index), fromHex(leaf)]);
      return hex(rootFromMultiproof(size, leaves, proof).root);
    }
    if (entry.what === "inclusion") checkInclusion(fromHex(entry.leaf), BigInt(entry.index), size, proof, root);
    else checkConsistency(BigInt(entry.old_size), size, proof, fromHex(entry.old_root), root);
    return true;
  },
  derivation(entry) {
    const secret = entry.secret && fromHex(entry.secret);
    const lot = (kind, rest) =>
      sha256(concat(utf8(`verifiable-inference/v2/challenge/${kind}\n`), fromHex(entry.seed), rest));
    const drawn = (items, lotOf) => items.sort((a, b) => compare(lotOf(a), lotOf(b))).slice(0, entry.count);
    if (entry.what === "drawn-sessions") {
      const weighed = ([session, weight]) => weighedLot(lot("session", fromHex(session)), BigInt(weight));
      return drawn(entry.sessions, (item) => concat(bigEndian(weighed(item), 32), fromHex(item[0]))).map(([id]) => id);
    }
    if (entry.what === "drawn-turns") {
      const turns = Array.from({ length: entry.turns }, (_, turn) => turn);
      const chosen = drawn(turns, (turn) => lot("turn", concat(fromHex(entry.session), bigEndian(turn, 4))));
      return chosen.sort((a, b) => a - b);
    }
    if (entry.what === "drawn-window") {
      const first = lot("window", fromHex(entry.session)).subarray(0, 8);
      const places = BigInt(Math.max(entry.tokens - entry.length, 0) + 1);
      return Number((BigInt(`0x${hex(first)}`) * places) >> 64n);
    }
    const digests = {
      "turn-secret": () => hmacSha256(secret, concat(utf8("turn"), bigEndian(entry.turn, 4))),
      "reader-capability": () => sha256(concat(utf8("verifiable/reader"), fromHex(entry.owner))),
      salt: () => hmacSha256(secret, bigEndian(entry.seq, 8)).subarray(0, 16),
      "prompt-digest": () => sha256(concat(...entry.ids.map((id) => bigEndian(id, 4).reverse()))),
      "stop-digest": () => stopDigest(entry.stops),
      "tokens-digest": () => tokensDigest(entry.ids, entry.sources, entry.fresh),
      "sampling-key": () => samplingKey(entry.source, fromHex(entry.nonce), fromHex(entry.prompt_digest)),
    };
    return hex(digests[entry.what]());
  },
  manifest(entry) {
    const found = parseManifest(fromHex(entry.input));
    return {
      digest: hex(found.digest),
      provider: found.provider,
      valid_from: plain(found.validFrom),
      valid_to: plain(found.validTo),
      files: found.files.map((file) => [file.name, hex(file.sha256), plain(file.size)]),
      vocabulary: found.vocabulary,
      n_ctx: found.context,
      fingerprint: hex(found.fingerprint),
      invariant: found.invariant,
      k: found.k,
      value_kind: found.valueKind,
      defaults: [...vectorParams(found.defaults).slice(0, 4), ...vectorParams(found.defaults).slice(5, 7)],
      adapters: found.adapters.map((file) => [file.name, hex(file.sha256), plain(file.size), file.scale]),
      suppressed: found.suppressed,
      device: found.device ?? "",
      rope: found.rope,
      pairs: found.pairs,
      libraries: found.libraries.map(({ name, sha256 }) => [name, hex(sha256)]),
      compiler: found.compiler ?? "",
      drafters: found.drafters,
      session_keys: found.sessionKeys.map((key) => hex(key.kid)),
      log: found.log?.name ?? null,
    };
  },
  head: (entry) => showFields(parseHead(fromHex(entry.input))),
  leaf(entry) {
    const { params, ids, logits, logitBytes, ...leaf } = parseLeaf(fromHex(entry.input));
    const shown = showFields(leaf);
    if (params) shown.params = vectorParams(params);
    if (ids) Object.assign(shown, { ids, logits: hex(logitBytes) });
    return shown;
  },
  packed(entry) {
    const { ids, sources, fresh, steps } = parsePacked(decodeCbor(fromHex(entry.input)));
    return { ids, sources, steps, digest: hex(tokensDigest(ids, sources, fresh)) };
  },
  request(entry) {
    const found = readCanonical(vectorBytes(entry));
    const shown = {
      digest: hex(found.digest),
      nonce: found.nonce && hex(found.nonce),
      nonce_source: found.nonceSource,
      session: found.session,
      turn: found.turn,
      manifest: found.manifest && hex(found.manifest),
      stops: found.stops,
      seed: found.seed,
    };
    if (!entry.context) return shown;
    const [temperature, topK, topP, minP, repeatPenalty = 1, repeatLastN = 0] = entry.context.defaults;
    const params = paramsOf(
      found,
      { temperature, topK, topP, minP, repeatPenalty, repeatLastN },
      entry.context.k,
      entry.context.n_ctx,
      entry.context.prompt_count,
    );
    return { ...shown, params: params && vectorParams(params) };
  },
  body: (entry) => readRequest(entry.path, vectorBytes(entry)).canonical,
  draw(entry) {
    const idBytes = entry.ids
      ? concat(...entry.ids.map((id) => bigEndian(id, 4).reverse()))
      : fromHex(entry.id_bytes);
    const row = parseEntries(idBytes, fromHex(entry.logits));
    const given = [...entry.params, 1].map((value, i) => [BigInt(i + 1), i === 1 || i === 4 ? BigInt(value) : value]);
    const key = fromHex(entry.key);
    const allowed = acceptable(row, parseParams(new CborMap(given), "params"), key, entry.position);
    return { noise: gumbel(key, entry.position, row.ids), acceptable: [...allowed].sort((a, b) => a - b) };
  },
  delivery(entry) {
    const { text, stopped } = deliverText(entry.pieces.map(fromHex), entry.stops);
    return { text, stopped, digest: hex(sha256(utf8(text))) };
  },
  checkpoint(entry) {
    const named = entry.witnesses?.map((text) => WitnessKey.parse(text));
    const { origin, size, root, witnesses } = openCheckpoint(entry.text, PublicKey.parse(entry.log), named);
    return { origin, size: plain(size), root: hex(root), ...(named && { witnesses }) };
  },
  "tlog-proof"(entry) {
    const { index, size } = checkTlogProof(entry.text, fromHex(entry.entry), PublicKey.parse(entry.log));
    return { index: plain(index), size: plain(size) };
  },
  receipt(entry) {
    const held = checkReceipt(parseReceipt(fromBase64(entry.input)), vectorTrust(entry), entry.text, new Report());
    const quorum = entry.witnesses && { witnesses: entry.witnesses.join("\n"), quorum: String(entry.quorum ?? "") };
    if (quorum) checkQuorum(held, quorumOf(quorum), new Report());
    return showSession(held);
  },
  exchange(entry) {
    const kept = parseExchange(vectorBytes(entry));
    if (!kept.receipt) return null;
    const receipt = parseReceipt(kept.receipt);
    const session = checkReceipt(receipt, vectorTrust(entry), kept.text, new Report());
    checkCopy(session, receipt.turn, kept, null);
    return showSession(session);
  },
  answer(entry) {
    const receipt = parseReceipt(fromBase64(entry.receipt));
    const held = checkReceipt(receipt, vectorTrust(entry), null, new Report());
    const session = checkEvidence(parseEvidence(fromBase64(entry.evidence)), vectorTrust(entry), new Report());
    checkAnswers(held, receipt.turn, session);
    checkSameHistory(held, session);
    return showSession(session);
  },
  evidence(entry) {
    const session = checkEvidence(parseEvidence(fromBase64(entry.input)), vectorTrust(entry), new Report());
    const opened = session.turns.map((turn) => {
      const replayed = checkReplay(turn);
      return { turn: turn.turn.turn, tokens: turn.end.completionCount, replayed };
    });
    return { ...showSession(session), opened };
  },
  fraud(entry) {
    const delay = entry.delay === undefined ? undefined : BigInt(entry.delay);
    const found = checkFraud(parseFraud(fromBase64(entry.input)), vectorTrust(entry), new Report(), delay);
    const session = found.session && hex(found.session);
    return { code: found.code, signed_by: found.signedBy, session, turn: found.turn, position: found.position };
  },
  keys(entry) {
    const chain = new Chain(vectorTrust(entry), parseKeys(fromBase64(entry.input)));
    const found = {
      keys: chain.keys.map((key) => [vkeyOf(key), vkeyOf(chain.rootOf(key)), plain(chain.revoked(key)?.time ?? null)]),
      left_out: chain.ignored.length,
    };
    if (entry.log) found.logs = chain.logs(PublicKey.parse(entry.log)).map(vkeyOf);
    if (!entry.receipt) return found;
    try {
      const quorum = entry.witnesses ? quorumOf({ witnesses: entry.witnesses.join("\n") }) : null;
      const held = checkReceipt(parseReceipt(fromBase64(entry.receipt)), chain, entry.text, new Report());
      if (quorum) checkQuorum(held, quorum, new Report());
      return { ...found, receipt: [null, checkRevocations(held, quorum, new Report()).length > 0] };
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      return { ...found, receipt: [error.code, false] };
    }
  },
  verdict(entry) {
    const { issuer, subject, report, time, status, sessions, checked, total, codes, where } = checkVerdict(
      fromBase64(entry.input),
    );
    const [by, about] = [issuer.label, subject.label];
    const counts = sessions.map(plain);
    const tokens = [plain(checked), plain(total)];
    return { by, about, report: hex(report), time: plain(time), status, counts, tokens, codes, where };
  },
};

/** Fields under the names of the vectors: snake case, bytes as hexadecimal digits. */
function showFields(fields) {
  const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [snake(name), plain(value)]));
}

const vkeyOf = (key) => `${key.label}+${btoa(String.fromCharCode(1, ...key.bytes))}`;

function showSession({ key, manifest, chain, head, spans, closed }) {
  return {
    signed_by: signedBy(key, manifest, chain),
    session: hex(head.session),
    size: plain(head.size),
    turns: spans.length,
    closed,
  };
}

/** Whether two outcomes are the same; real numbers may differ by 1e-8. */
function agrees(a, b) {
  if (typeof a === "number" && typeof b === "number") return Math.abs(a - b) <= 1e-8;
  if (typeof a !== "object" || typeof b !== "object" || !a || !b || Array.isArray(a) !== Array.isArray(b))
    return a === b;
  const names = Object.keys(a);
  return (
    names.length === Object.keys(b).length &&
    names.every((name) => Object.hasOwn(b, name) && agrees(a[name], b[name]))
  );
}

/** The outcome of each case of a vector file, and whether it is the expected one. */
function runVectors(file) {
  return file.cases.map((entry) => {
    let outcome;
    try {
      outcome = { ok: OPERATIONS[file.operation](entry) };
    } catch (error) {
      outcome = error instanceof Failure ? { error: error.code } : { error: `fault of the page: ${error.stack}` };
    }
    return { name: entry.name, outcome, agrees: agrees(outcome, entry.expected) };
  });
}
