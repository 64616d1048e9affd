// Bytes, text and errors. Integers that may pass 2^53 are BigInt throughout; JavaScript numbers are floats.

/** A check that does not hold, or input that is not well formed (code "malformed"). */
class Failure extends Error {
  constructor(code, what, expected, found) {
    super(what);
    this.code = code;
    this.expected = expected;
    this.found = found;
  }
}

const malformed = (what, expected, found) => new Failure("malformed", what, expected, found);

/** Read what a checked signature or root binds: what is malformed there was signed so. */
function readingSigned(read) {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== "malformed") throw error;
    const what = `what was signed is not well formed: ${error.message}`;
    throw new Failure("signed-malformed", what, error.expected, error.found);
  }
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

function fromHex(text) {
  if (!/^(?:[0-9a-f]{2})*$/.test(text)) throw malformed("hexadecimal digits");
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

function concat(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Negative, zero or positive, as `a` stands before, at or after `b` in bytewise lexical order. */
function compare(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

const same = (a, b) => compare(a, b) === 0;

/** An unsigned integer as `size` bytes, most significant first. */
function bigEndian(value, size) {
  const bytes = new Uint8Array(size);
  let rest = BigInt(value);
  for (let i = size - 1; i >= 0; i--, rest >>= 8n) bytes[i] = Number(rest & 0xffn);
  return bytes;
}

const bigFromBytes = (bytes) => (bytes.length ? BigInt("0x" + hex(bytes)) : 0n);

const utf8 = (text) => new TextEncoder().encode(text);

function fromUtf8(bytes, what) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw malformed(what, "valid UTF-8");
  }
}

/** Whether a string has no lone surrogate, so that it is text and can be written in UTF-8. */
const isText = (string) => !/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(string);

/** Base64url without padding, in its one canonical spelling. */
const fromUrlBase64 = (text, what) =>
  fromBase64(text.replaceAll("-", "+").replaceAll("_", "/") + "=".repeat(-text.length & 3), what);

/** Standard base64 with padding, in its one canonical spelling. */
function fromBase64(text, what, length) {
  // No groups: on a long text an expression that repeats one exhausts the stack.
  if (text.length % 4 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) throw malformed(what, "base64");
  const binary = atob(text);
  if (btoa(binary) !== text) throw malformed(what, "base64 without stray bits");
  const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
  if (length !== undefined && bytes.length !== length)
    throw malformed(what, `${length} bytes`, `${bytes.length} bytes`);
  return bytes;
}
