// The protocol's objects: head, leaves, packed tokens, and the two files that people hand around.

const HEAD_TYPE = "application/vnd.verifiable.head+cbor";
const MANIFEST_TYPE = "application/vnd.verifiable.manifest+cbor";
const { U31, U32 } = LIMITS;
const RANGES = LIMITS.NUMBERS;

/** Refuse an object of any other protocol than this one; a newer one is not called malformed. */
function version(value, what) {
  const number = uintOf(value, what);
  const said = `an object of protocol ${number}; this reads 2`;
  if (number > 2n) throw new Failure("newer-version", said, `${what} 2`, `${number}`);
  if (number < 2n) throw malformed(said, `${what} 2`, number);
}

/** The fields of a map with the keys 1 to `count`, of which the first is the version, and is looked at first. */
function versionedOf(value, count, what) {
  if (value instanceof CborMap && value.pairs[0]?.[0] === 1n) version(value.pairs[0][1], `${what} version`);
  return fieldsOf(value, count, what);
}

/** Sampling parameters: keys 1 to 5, and those of 6 to 11 whose processors are active (sampling-processors.md). */
function parseParams(value, what) {
  if (!(value instanceof CborMap)) throw malformed(what, "a map");
  const [temperature, topK, topP, minP, maxTokens] = fieldsOf(new CborMap(value.pairs.slice(0, 5)), 5, what);
  const params = {
    temperature: temperature === 0 ? 0 : floatOf(temperature, `${what}: temperature`, ...LIMITS.TEMPERATURE),
    topK: positive(uintOf(topK, `${what}: top_k`, LIMITS.ENTRIES), `${what}: top_k`),
    topP: floatOf(topP, `${what}: top_p`, ...RANGES.top_p),
    minP: floatOf(minP, `${what}: min_p`, ...RANGES.min_p),
    maxTokens: positive(uintOf(maxTokens, `${what}: max_tokens`, LIMITS.ANSWER_TOKENS), `${what}: max_tokens`),
    ...NO_PROCESSORS,
  };
  for (const [key, given] of value.pairs.slice(5)) {
    if (!Object.hasOwn(PROCESSORS, key)) throw malformed(what, "keys 1 to 11");
    Object.assign(params, PROCESSORS[key](given));
  }
  return params;
}

const NO_PROCESSORS = {
  repeatPenalty: 1,
  repeatLastN: 0,
  frequencyPenalty: 0,
  presencePenalty: 0,
  logitBias: [],
  ignoreEos: false,
  constraint: "",
};

/** Readers of the keys that are there only where they change something. */
const PROCESSORS = {
  6(value) {
    const [penalty, count] = arrayOf(value, 2, "repeat penalty");
    return {
      repeatPenalty: changing(floatOf(penalty, "repeat_penalty", ...RANGES.repeat_penalty), 1),
      repeatLastN: positive(uintOf(count, "repeat_last_n", U31), "repeat_last_n"),
    };
  },
  7: (value) => ({ frequencyPenalty: changing(floatOf(value, "frequency_penalty", ...RANGES.frequency_penalty), 0) }),
  8: (value) => ({ presencePenalty: changing(floatOf(value, "presence_penalty", ...RANGES.presence_penalty), 0) }),
  9(value) {
    const logitBias = arrayOf(value, null, "logit_bias").map((pair) => {
      const [id, bias] = arrayOf(pair, 2, "a bias");
      return [uintOf(id, "biased id", U31), changing(floatOf(bias, "bias", ...LIMITS.BIAS), 0)];
    });
    const ascending = logitBias.every(([id], i) => i === 0 || id > logitBias[i - 1][0]);
    if (!logitBias.length || logitBias.length > LIMITS.BIASES || !ascending)
      throw malformed("logit_bias", `1 to ${LIMITS.BIASES} ascending ids`);
    return { logitBias };
  },
  10: (value) => ({ ignoreEos: changing(booleanOf(value, "ignore_eos"), false) }),
  11: (value) => ({ constraint: hex(bytesOf(value, "constraint", 32)) }),
};

function changing(value, neutral) {
  if (value === neutral) throw malformed("sampling parameters", "no key whose value changes nothing");
  return value;
}

function positive(value, what) {
  if (value < 1) throw malformed(what, "1 or more", value);
  return value;
}

function parseHead(payload) {
  const fields = arrayOf(decodeCbor(payload), null, "head");
  version(fields[0], "head version");
  const interim = fields.length === 7;
  const [session, size, root, manifest, time, mark] = arrayOf(fields, interim ? 7 : 6, "head").slice(1);
  if (interim && mark !== true) throw malformed("head: the mark of an interim one", "true, or none", String(mark));
  return {
    interim,
    session: bytesOf(session, "head session", 16),
    size: uintOf(size, "head size"),
    root: bytesOf(root, "head root", 32),
    manifest: bytesOf(manifest, "head manifest digest", 32),
    time: uintOf(time, "head time"),
  };
}

const KINDS = ["open", "turn", "token", "end", "close"];
const LENGTHS = [7, 13, 12, 12, 5];

function parseLeaf(data) {
  const f = arrayOf(decodeCbor(data), null, "leaf");
  if (f.length < 4) throw malformed("leaf", "4 fields or more", f.length);
  const kind = KINDS[Number(uintOf(f[0], "leaf kind", 4))];
  if (f.length !== LENGTHS[KINDS.indexOf(kind)])
    throw malformed(`${kind} leaf`, `${LENGTHS[KINDS.indexOf(kind)]} fields`, f.length);
  const leaf = {
    kind,
    session: bytesOf(f[1], "leaf session", 16),
    seq: uintOf(f[2], "leaf sequence number"),
    salt: bytesOf(f[3], "leaf salt", 16),
  };
  return Object.assign(leaf, LEAVES[kind](f.slice(4)));
}

const LEAVES = {
  open([number, manifest, time]) {
    version(number, "record version");
    return { manifest: bytesOf(manifest, "manifest digest", 32), time: uintOf(time, "open time") };
  },
  turn([turn, request, prompt, promptCount, params, stops, nonce, source, cached]) {
    const nonceSource = uintOf(source, "nonce source", 2);
    const [least, most] = LIMITS.NONCE_BYTES;
    if (bytesOf(nonce, "nonce", nonceSource === 1 ? 8 : null, most).length < least)
      throw malformed("nonce", `${least} bytes or more`);
    return {
      turn: uintOf(turn, "turn number", U32),
      request: bytesOf(request, "request digest", 32),
      prompt: bytesOf(prompt, "prompt digest", 32),
      promptCount: uintOf(promptCount, "prompt count", U31),
      params: parseParams(params, "sampling parameters"),
      stops: bytesOf(stops, "stop digest", 32),
      nonce,
      nonceSource,
      cached: uintOf(cached, "cached count", U31),
    };
  },
  token([turn, position, token, source, step, row, ids, logits]) {
    return {
      turn: uintOf(turn, "turn number", U32),
      position: uintOf(position, "position", U31),
      token: uintOf(token, "token id", U31),
      source: uintOf(source, "source", 4),
      step: uintOf(step, "decode step", U31),
      row: uintOf(row, "decode row", U31),
      ...parseEntries(bytesOf(ids, "record ids"), bytesOf(logits, "record logits")),
    };
  },
  end([turn, finish, promptCount, completionCount, text, tokens, drafted, accepted]) {
    return {
      turn: uintOf(turn, "turn number", U32),
      finish: uintOf(finish, "finish reason", 3),
      promptCount: uintOf(promptCount, "prompt count", U31),
      completionCount: uintOf(completionCount, "completion count", U31),
      text: bytesOf(text, "text digest", 32),
      tokens: bytesOf(tokens, "tokens digest", 32),
      drafted: uintOf(drafted, "drafted count", U31),
      accepted: uintOf(accepted, "accepted count", U31),
    };
  },
  close([turns]) {
    return { turns: uintOf(turns, "turn count", U32) };
  },
};

/** Ids and logits of a record: descending logits, equal ones by ascending id, no id twice. */
function parseEntries(idBytes, logitBytes) {
  const count = idBytes.length / 4;
  if (idBytes.length !== logitBytes.length || !Number.isInteger(count) || count < 1 || count > LIMITS.ENTRIES)
    throw malformed("record entries", `as many ids as logits, 1 to ${LIMITS.ENTRIES}, 4 bytes each`);
  const idView = new DataView(idBytes.buffer, idBytes.byteOffset);
  const logitView = new DataView(logitBytes.buffer, logitBytes.byteOffset);
  const indices = Array.from({ length: idBytes.length / 4 }, (_, i) => 4 * i);
  const ids = indices.map((at) => idView.getUint32(at, true));
  const logits = indices.map((at) => logitView.getFloat32(at, true));
  if (!logits.every(Number.isFinite)) throw malformed("record logits", "finite numbers");
  for (let i = 1; i < ids.length; i++) {
    const ordered = logits[i - 1] > logits[i] || (logits[i - 1] === logits[i] && ids[i - 1] < ids[i]);
    if (!ordered) throw malformed("record entries", "descending logits, ties by lower id");
  }
  if (new Set(ids).size !== ids.length) throw malformed("record entries", "no id twice");
  return { ids, logits, logitBytes };
}

function parsePacked(value) {
  const items = arrayOf(value, 4, "packed tokens");
  const count = uintOf(items[0], "packed token count", LIMITS.ANSWER_TOKENS);
  const width = positive(uintOf(items[1], "packed token width", 4), "packed token width");
  const idBytes = bytesOf(items[2], "packed token ids", count * width);
  const marks = bytesOf(items[3], "packed token marks", Math.ceil(count / 2));
  const nibbles = Array.from(marks).flatMap((byte) => [byte & 15, byte >> 4]);
  if (nibbles.length > count && nibbles.pop() !== 0)
    throw malformed("packed token marks", "zero after the last mark");
  const ids = Array.from({ length: count }, (_, i) =>
    Number(bigFromBytes(idBytes.slice(i * width, (i + 1) * width).reverse())),
  );
  const sources = nibbles.map((nibble) => nibble & 7);
  if (sources.some((source) => source > 4)) throw malformed("packed token marks", "sources 0 to 4");
  const fresh = nibbles.map((nibble) => nibble > 7);
  let [step, row] = [-1, -1];
  const steps = fresh.map((first) => ([step, row] = first ? [step + 1, 0] : [step, row + 1]));
  return { width, ids, sources, fresh, steps };
}

/** SHA-256 over each token's id (4 bytes, little-endian) and mark (source, and 8 for the first of a step). */
function tokensDigest(ids, sources, fresh) {
  const view = new DataView(new ArrayBuffer(5 * ids.length));
  ids.forEach((id, i) => {
    view.setUint32(5 * i, id, true);
    view.setUint8(5 * i + 4, sources[i] | (fresh[i] ? 8 : 0));
  });
  return sha256(new Uint8Array(view.buffer));
}

/** The values of a file after its version and before its last, which is the SHA-256 of all bytes before it. */
function unseal(data, count, what, size) {
  const [fewest, most] = LIMITS.SEALED_ITEMS;
  const items = Math.max(fewest, Math.min(Math.floor(data.length / 4), most));
  const value = decodeCbor(data, { size, items });
  const checksum = bytesOf(value instanceof CborMap ? value.pairs.at(-1)?.[1] : null, `${what} checksum`, 32);
  if (!same(sha256(data.subarray(0, -32)), checksum))
    throw malformed(`${what}: its checksum does not fit its bytes; it was damaged or edited`);
  return versionedOf(value, count + 1, what).slice(1, -1);
}

function parseOpening(leaves, proof, most = LIMITS.SESSION_LEAVES, longest = LIMITS.LEAF_BYTES) {
  let last = -1n;
  if (arrayOf(leaves, null, "opened leaves").length > most) throw malformed("opened leaves", `at most ${most}`);
  return {
    leaves: leaves.map((entry) => {
      const [index, data] = arrayOf(entry, 2, "opened leaf");
      if (uintOf(index, "leaf index") <= last) throw malformed("opened leaves", "ascending indices");
      last = index;
      return { index, data: bytesOf(data, "opened leaf", null, longest) };
    }),
    proof: arrayOf(proof, null, "opening proof").map((hash) => bytesOf(hash, "proof hash", 32)),
  };
}

function parseReceipt(data) {
  const [head, manifest, leaves, proof, turn, capability, log] = unseal(data, 8, "receipt", LIMITS.RECEIPT_BYTES);
  if (capability !== null) bytesOf(capability, "receipt capability", 32); // it opens the conversation: never shown
  return {
    head: bytesOf(head, "receipt head"),
    manifest: bytesOf(manifest, "receipt manifest"),
    opening: parseOpening(leaves, proof),
    turn: uintOf(turn, "receipt turn", U32),
    opens: capability !== null,
    log: log === null ? null : bytesOf(log, "receipt log proof"),
  };
}

function parseEvidence(data) {
  const [kind, head, manifest, leaves, proof, turns] = unseal(data, 7, "evidence", LIMITS.EVIDENCE_BYTES);
  const opened = arrayOf(turns, null, "evidence turns").map((entry) => {
    const [turn, request, secret, tokens] = arrayOf(entry, 4, "opened turn");
    return {
      turn: uintOf(turn, "turn number", U32),
      request: bytesOf(request, "turn request", null, LIMITS.REQUEST_BYTES),
      secret: bytesOf(secret, "turn secret", 32),
      tokens: tokens === null ? null : parsePacked(tokens),
    };
  });
  if (opened.some(({ turn }, i) => i && turn <= opened[i - 1].turn))
    throw malformed("evidence turns", "ascending numbers");
  return {
    kind: ["tokens", "records", "full"][uintOf(kind, "evidence kind", 2)],
    head: bytesOf(head, "evidence head", null, LIMITS.SIGNED_BYTES),
    manifest: bytesOf(manifest, "evidence manifest", null, LIMITS.SIGNED_BYTES),
    opening: parseOpening(leaves, proof),
    turns: opened,
  };
}
