// Ed25519 verification (RFC 8032 §5.1.7) with the stricter rule of the protocol: the key is a canonical point of the
// main subgroup and not its neutral element, S is below L, R is not the neutral element, and R is compared byte by
// byte.
// Browsers differ on exactly these cases, so their own verification is not relied on. Not for signing: the time that
// this arithmetic takes depends on its numbers.

const P = 2n ** 255n - 19n;
const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const mod = (x) => ((x % P) + P) % P;

function power(base, exponent) {
  let result = 1n;
  for (let b = mod(base), e = exponent; e > 0n; e >>= 1n, b = (b * b) % P) if (e & 1n) result = (result * b) % P;
  return result;
}

const D = mod(-121665n * power(121666n, P - 2n));
const ROOT_OF_MINUS_ONE = power(2n, (P - 1n) / 4n);
const NEUTRAL = { x: 0n, y: 1n, z: 1n, t: 0n };

// Points in extended coordinates: x = X/Z, y = Y/Z, T = XY/Z (RFC 8032 §5.1.4).
function addPoints(p, q) {
  const a = ((p.y - p.x) * (q.y - q.x)) % P;
  const b = ((p.y + p.x) * (q.y + q.x)) % P;
  const c = (2n * p.t * q.t * D) % P;
  const d = (2n * p.z * q.z) % P;
  const [e, f, g, h] = [b - a, d - c, d + c, b + a];
  return { x: mod(e * f), y: mod(g * h), z: mod(f * g), t: mod(e * h) };
}

function multiply(scalar, point) {
  let result = NEUTRAL;
  for (let s = scalar, p = point; s > 0n; s >>= 1n, p = addPoints(p, p)) if (s & 1n) result = addPoints(result, p);
  return result;
}

function encodePoint({ x, y, z }) {
  const inverse = power(z, P - 2n);
  const sign = ((x * inverse) % P) & 1n;
  return bigEndian(((y * inverse) % P) | (sign << 255n), 32).reverse();
}

/** The point that 32 bytes stand for, or null: not canonical, or not on the curve. */
function decodePoint(bytes) {
  const value = bigFromBytes(bytes.slice().reverse());
  const sign = value >> 255n;
  const y = value & ((1n << 255n) - 1n);
  if (y >= P) return null;
  const u = mod(y * y - 1n);
  const v = mod(D * y * y + 1n);
  let x = (u * power(v, 3n) * power(u * power(v, 7n), (P - 5n) / 8n)) % P;
  if (mod(v * x * x) === mod(-u)) x = (x * ROOT_OF_MINUS_ONE) % P;
  if (mod(v * x * x) !== u || (x === 0n && sign)) return null;
  if ((x & 1n) !== sign) x = mod(-x);
  return { x, y, z: 1n, t: mod(x * y) };
}

const BASE = decodePoint(fromHex("58" + "66".repeat(31)));
const isNeutral = (point) => point.x === 0n && point.y === point.z;

/** A key's point, or null for bytes that no honest private key leads to. */
function keyPoint(bytes) {
  const point = bytes.length === 32 ? decodePoint(bytes) : null;
  return point && !isNeutral(point) && isNeutral(multiply(L, point)) ? point : null;
}

/** Whether `signature` is a signature of `message` by the key with this point and these bytes. */
function verifySignature(point, key, message, signature) {
  if (signature.length !== 64) return false;
  const r = signature.subarray(0, 32);
  const s = bigFromBytes(signature.slice(32).reverse());
  if (s >= L || same(r, encodePoint(NEUTRAL))) return false;
  const k = bigFromBytes(sha512(concat(r, key, message)).reverse()) % L;
  return same(encodePoint(addPoints(multiply(s, BASE), multiply(L - k, point))), r);
}
