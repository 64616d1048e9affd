// Keys (C2SP signed-note and RFC 9679), COSE_Sign1 (RFC 9052), and the signed notes of a provider's log.

const SPACE = /[\u0000-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;

function checkName(name) {
  if (!name || name.includes("+") || SPACE.test(name) || !isText(name) || utf8(name).length > LIMITS.KEY_NAME_BYTES) {
    throw malformed("key name", `1 to ${LIMITS.KEY_NAME_BYTES} bytes of text without '+', spaces or control characters`);
  }
  return name;
}

/** Four bytes that tell keys of one name apart in a note. */
const keyId = (name, typed) => sha256(concat(utf8(name), [10], typed)).subarray(0, 4);

/** Signatures that were verified since this was last emptied, for a second opinion of the browser's. */
const checkedSignatures = [];

class PublicKey {
  /** Read `name+hash+base64(1 ‖ key)`. */
  static parse(text) {
    const [name, hash, ...rest] = text.split("+");
    if (!rest.length) throw malformed("verifier key", "name+hash+base64");
    checkName(name);
    const typed = fromBase64(rest.join("+"), "verifier key");
    if (typed.length < 2 || hash !== hex(keyId(name, typed))) throw malformed("verifier key: the hash does not fit");
    if (typed[0] !== 1) throw malformed("verifier key: type", "1 (Ed25519)", typed[0]);
    return new PublicKey(name, typed.subarray(1));
  }

  constructor(name, bytes) {
    this.name = name;
    this.bytes = bytes;
    this.id = keyId(name, concat([1], bytes));
    this.point = keyPoint(bytes);
    if (!this.point) throw malformed("Ed25519 key", "a canonical point of the main subgroup");
    this.kid = sha256(concat(fromHex("a30101200621"), cborBytes(bytes))); // of the COSE_Key {1: 1, -1: 6, -2: bytes}
  }

  /** How a message names it: `name+hash`, with which the key's line begins in its file. */
  get label() {
    return `${this.name}+${hex(this.id)}`;
  }

  verify(message, signature) {
    checkedSignatures.push({ key: this.bytes, message, signature });
    if (!verifySignature(this.point, this.bytes, message, signature)) {
      throw new Failure("bad-signature", "the signature does not verify", `a signature by ${this.label}`);
    }
  }
}

/** A COSE_Sign1 with exactly our headers, with `claimed` CWT claims too. Nothing in it is verified. */
function parseEnvelope(data, claimed = false) {
  const outer = decodeCbor(data, { tags: [18] });
  if (!(outer instanceof Tagged)) throw malformed("COSE_Sign1", "tag 18");
  const [raw, unprotected, payload, signature] = arrayOf(outer.value, 4, "COSE_Sign1");
  bytesOf(raw, "COSE_Sign1 protected header");
  bytesOf(payload, "COSE_Sign1 payload");
  bytesOf(signature, "COSE_Sign1 signature");
  const header = decodeCbor(raw);
  const keys = header instanceof CborMap && header.pairs.map(([key]) => key);
  const wanted = claimed ? [1n, 4n, 15n, 16n] : [1n, 4n, 16n];
  if (!keys || keys.length !== wanted.length || keys.some((key, i) => key !== wanted[i])) {
    throw malformed("COSE_Sign1 protected header", `algorithm, kid${claimed ? ", claims" : ""} and type`);
  }
  if (!(unprotected instanceof CborMap) || unprotected.pairs.length) {
    throw malformed("COSE_Sign1 unprotected header", "an empty map");
  }
  const typ = textOf(header.get(16), "COSE_Sign1 type", LIMITS.TYPE_BYTES);
  const kid = bytesOf(header.get(4), "COSE_Sign1 kid", 32);
  const parts = [cborText("Signature1"), cborBytes(raw), cborBytes(new Uint8Array()), cborBytes(payload)];
  const claims = claimed ? fieldsOf(header.get(15), 2, "CWT claims") : [];
  const [issuer, subject] = claims.map((claim) => textOf(claim, "CWT claim", LIMITS.KEY_BYTES));
  return { issuer, subject, algorithm: header.get(1), kid, typ, payload, signature, message: cborArray(parts) };
}

/** The payload of an envelope of this type, and the trusted key that signed it. */
const openEnvelope = (data, trusted, typ) => openParsed(parseEnvelope(data), trusted, typ);

function openParsed(found, trusted, typ) {
  if (found.algorithm !== -19n && found.algorithm !== -8n) {
    const allowed = "-19 (Ed25519) or -8 (EdDSA)";
    throw new Failure("unsupported-algorithm", "the signature algorithm is not supported", allowed);
  }
  const key = trusted.find((candidate) => same(candidate.kid, found.kid));
  if (!key) {
    throw new Failure("untrusted-key", "signed by a key that is not trusted", "a trusted key's kid", hex(found.kid));
  }
  key.verify(found.message, found.signature);
  if (found.typ !== typ) throw new Failure("wrong-type", "a signed object of another type", typ, found.typ);
  return { payload: found.payload, key };
}

const DASH = "\u2014 ";

/** A text file of C2SP: no control character but newline. */
function checkLines(text, what, maximum) {
  if (!isText(text) || utf8(text).length > maximum || /[\u0000-\u0009\u000b-\u001f]/.test(text)) {
    throw malformed(what, `at most ${maximum} bytes of text without control characters`);
  }
  return text;
}

function decimalOf(text, what) {
  if (!/^(?:0|[1-9][0-9]{0,18})$/.test(text) || BigInt(text) > LIMITS.U63)
    throw malformed(what, "a decimal below 2^63");
  return BigInt(text);
}

function parseNote(text) {
  checkLines(text, "note", LIMITS.NOTE_BYTES);
  const border = text.lastIndexOf("\n\n");
  const lines = border < 0 ? [] : text.slice(border + 2).split("\n");
  if (lines.length < 2 || lines.pop() !== "" || lines.length > LIMITS.NOTE_SIGNATURES)
    throw malformed("note", `text, a blank line, 1 to ${LIMITS.NOTE_SIGNATURES} signatures`);
  const signatures = lines.map((line) => {
    const [, name, encoded] = line.match(/^\u2014 ([^ ]*) (.*)$/u) ?? [];
    if (name === undefined) throw malformed("note: signature line", "— name base64");
    const bytes = fromBase64(encoded, "note: signature");
    if (bytes.length < 5) throw malformed("note: signature", "a key ID and a signature");
    return { name: checkName(name), id: bytes.subarray(0, 4), signature: bytes.subarray(4) };
  });
  return { text: text.slice(0, border + 1), signatures };
}

/** A witness's key: `name+hash+base64(4 ‖ key)` of C2SP tlog-cosignature. */
class WitnessKey extends PublicKey {
  static parse(text) {
    const [name, hash, ...rest] = text.split("+");
    const typed = rest.length ? fromBase64(rest.join("+"), "witness key") : [];
    if (typed.length !== 33 || typed[0] !== 4) throw malformed("witness key", "name+hash+base64 of type 4 (Ed25519)");
    const key = new WitnessKey(checkName(name), typed.subarray(1));
    key.id = keyId(name, typed);
    if (hash !== hex(key.id)) throw malformed("witness key: the hash does not fit");
    return key;
  }

  /** Check a signature line over a checkpoint's text: eight bytes of time, then the signature. */
  cosigned(text, signature) {
    const time = signature.length === 72 ? bigFromBytes(signature.subarray(0, 8)) : LIMITS.U63 + 1n;
    if (time > LIMITS.U63) throw new Failure("bad-signature", `the cosignature of ${this.name} does not verify`);
    this.verify(utf8(`cosignature/v1\ntime ${time}\n${text}`), signature.subarray(8));
  }
}

/** Size and root of a log, from a checkpoint that its key or one of several signed, and which witnesses cosigned it. */
function openCheckpoint(text, log, witnesses = []) {
  const note = parseNote(text);
  const signed = (key) => note.signatures.filter(({ name, id }) => name === key.name && same(id, key.id));
  const keys = [log].flat().filter((key) => signed(key).length);
  if (!keys.length) throw new Failure("untrusted-key", "the checkpoint is not signed by the log's key");
  for (const key of keys) for (const { signature } of signed(key)) key.verify(utf8(note.text), signature);
  const [names, times] = [new Set(), new Map()];
  for (const witness of witnesses) {
    for (const { name, id, signature } of note.signatures) {
      if (name !== witness.name || !same(id, witness.id)) continue;
      witness.cosigned(note.text, signature);
      names.add(name);
      const seen = 1000n * (bigFromBytes(signature.subarray(0, 8)) + 1n);
      if (!times.has(name) || seen < times.get(name)) times.set(name, seen);
    }
  }
  const [origin, size, root, ...extensions] = note.text.split("\n");
  if (root === undefined || extensions.pop() !== "" || !origin || extensions.includes(""))
    throw malformed("checkpoint", "origin, size and root");
  const head = { origin, size: decimalOf(size, "checkpoint size"), root: fromBase64(root, "checkpoint root", 32) };
  Object.assign(head, { witnesses: [...names], times, key: keys.at(-1) });
  const other = keys.find(({ name }) => name !== origin);
  if (other) throw new Failure("wrong-origin", "a checkpoint of another log", other.name, origin);
  return head;
}

/** Check a c2sp.org/tlog-proof@v1 file: `entry` stands under a checkpoint that this log's key signed, which is `note`. */
function checkTlogProof(text, entry, log) {
  checkLines(text, "log proof", 2 * LIMITS.NOTE_BYTES);
  const border = text.indexOf("\n\n");
  const lines = text.slice(0, Math.max(border, 0)).split("\n");
  if (lines.shift() !== "c2sp.org/tlog-proof@v1") throw malformed("log proof", "c2sp.org/tlog-proof@v1");
  if (lines[0]?.startsWith("extra ")) fromBase64(lines.shift().slice(6), "log proof: extra");
  const first = lines.shift();
  if (!first?.startsWith("index ") || lines.length > 63)
    throw malformed("log proof", "an index and at most 63 hashes");
  const index = decimalOf(first.slice(6), "log proof: index");
  const path = lines.map((line) => fromBase64(line, "log proof: hash", 32));
  const note = text.slice(border + 2);
  const { size, root, key } = openCheckpoint(note, log);
  checkInclusion(leafHash(entry), index, size, path, root);
  return { index, size, note, log: key };
}
