// SHA-256 and SHA-512 (FIPS 180-4), and HMAC (RFC 2104). WebCrypto has them too, but only as promises and only in
// what the browser counts as a secure context, which a page opened from a file need not be.

const PRIMES = [];
for (let n = 2; PRIMES.length < 80; n++) if (PRIMES.every((prime) => n % prime)) PRIMES.push(n);

/** The largest integer whose `power`-th power is at most `value` (Newton's method). */
function integerRoot(value, power) {
  let root = 1n << BigInt(Math.ceil(value.toString(2).length / power));
  for (;;) {
    const next = (BigInt(power - 1) * root + value / root ** BigInt(power - 1)) / BigInt(power);
    if (next >= root) return root;
    root = next;
  }
}

const MASK64 = (1n << 64n) - 1n;
// The first 64 bits of the fractional parts of cube and square roots of primes; SHA-256 uses the first 32 of them.
const CUBES = PRIMES.map((prime) => integerRoot(BigInt(prime) << 192n, 3) & MASK64);
const SQUARES = PRIMES.slice(0, 8).map((prime) => integerRoot(BigInt(prime) << 128n, 2) & MASK64);
const K256 = Uint32Array.from(CUBES.slice(0, 64), (value) => Number(value >> 32n));
const START256 = SQUARES.map((value) => Number(value >> 32n));

/** The message with a one bit, zeros and its length in bits, to a multiple of `block` bytes. */
function padded(message, block, lengthBytes) {
  const data = new Uint8Array(Math.ceil((message.length + 1 + lengthBytes) / block) * block);
  data.set(message);
  data[message.length] = 0x80;
  const view = new DataView(data.buffer);
  view.setUint32(data.length - 8, Math.floor(message.length / 2 ** 29));
  view.setUint32(data.length - 4, message.length * 8);
  return data;
}

function sha256(message) {
  const data = padded(message, 64, 8);
  const view = new DataView(data.buffer);
  const w = new Uint32Array(64);
  const state = Uint32Array.from(START256);
  const rotate = (x, n) => (x >>> n) | (x << (32 - n));
  for (let at = 0; at < data.length; at += 64) {
    for (let t = 0; t < 16; t++) w[t] = view.getUint32(at + 4 * t);
    for (let t = 16; t < 64; t++) {
      const s0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ (w[t - 15] >>> 3);
      const s1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ (w[t - 2] >>> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let t = 0; t < 64; t++) {
      const one = (h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + K256[t] + w[t]) | 0;
      const two = ((rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    state.set([state[0] + a, state[1] + b, state[2] + c, state[3] + d]);
    state.set([state[4] + e, state[5] + f, state[6] + g, state[7] + h], 4);
  }
  state.forEach((value, i) => view.setUint32(4 * i, value));
  return data.slice(0, 32);
}

function sha512(message) {
  const data = padded(message, 128, 16);
  const state = [...SQUARES];
  const rotate = (x, n) => (x >> n) | ((x << (64n - n)) & MASK64);
  for (let at = 0; at < data.length; at += 128) {
    const w = [];
    for (let t = 0; t < 16; t++) w.push(bigFromBytes(data.subarray(at + 8 * t, at + 8 * t + 8)));
    for (let t = 16; t < 80; t++) {
      const s0 = rotate(w[t - 15], 1n) ^ rotate(w[t - 15], 8n) ^ (w[t - 15] >> 7n);
      const s1 = rotate(w[t - 2], 19n) ^ rotate(w[t - 2], 61n) ^ (w[t - 2] >> 6n);
      w.push((w[t - 16] + s0 + w[t - 7] + s1) & MASK64);
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let t = 0; t < 80; t++) {
      const choice = (e & f) ^ ((e ^ MASK64) & g);
      const one = h + (rotate(e, 14n) ^ rotate(e, 18n) ^ rotate(e, 41n)) + choice + CUBES[t] + w[t];
      const two = (rotate(a, 28n) ^ rotate(a, 34n) ^ rotate(a, 39n)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) & MASK64, c, b, a, (one + two) & MASK64];
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => (state[i] = (state[i] + value) & MASK64));
  }
  return concat(...state.map((value) => bigEndian(value, 8)));
}

function hmacSha256(key, message) {
  const block = concat(key.length > 64 ? sha256(key) : key, new Uint8Array(64)).subarray(0, 64);
  const inner = sha256(
    concat(
      block.map((byte) => byte ^ 0x36),
      message,
    ),
  );
  return sha256(
    concat(
      block.map((byte) => byte ^ 0x5c),
      inner,
    ),
  );
}
