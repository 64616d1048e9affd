// Deterministic CBOR (RFC 8949 §4.2.1), of which exactly one spelling is read. Integers become BigInt, floats numbers,
// byte strings Uint8Array, arrays Array, maps CborMap, tagged items Tagged.

class CborMap {
  constructor(pairs) {
    this.pairs = pairs;
  }
  /** The value under an integer key, or undefined. */
  get(key) {
    return this.pairs.find(([name]) => name === BigInt(key))?.[1];
  }
}

class Tagged {
  constructor(tag, value) {
    this.tag = tag;
    this.value = value;
  }
}

function decodeCbor(data, { tags = [], size = LIMITS.CBOR_BYTES, items = LIMITS.CBOR_ITEMS } = {}) {
  if (data.length > size) throw malformed("CBOR: too long", `at most ${size} bytes`, `${data.length} bytes`);
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let at = 0;
  let left = items;
  const fail = (why) => malformed(`CBOR at byte ${at}: ${why}`);

  function take(count) {
    if (count > data.length - at) throw fail("it ends too early");
    at += count;
    return at - count;
  }

  function argument(info) {
    if (info < 24) return BigInt(info);
    if (info > 27) throw fail("an indefinite length or a reserved form");
    const width = 2 ** (info - 24);
    const start = take(width);
    const value = bigFromBytes(data.subarray(start, start + width));
    const least = info === 24 ? 24n : 1n << BigInt(4 * width);
    if (value < least) throw fail("an integer or a length that is not in its shortest form");
    return value;
  }

  /** A count of `each` items or more that must fit in what is left. */
  function count(value, each) {
    if (value * BigInt(each) > BigInt(Math.min(left, data.length - at))) throw fail("more items than there can be");
    return Number(value);
  }

  function float(start, width) {
    const value =
      width === 2
        ? halfToNumber(view.getUint16(start))
        : width === 4
          ? view.getFloat32(start)
          : view.getFloat64(start);
    if (!same(shortestFloat(value), data.subarray(start - 1, start + width)))
      throw fail("a float not in its shortest form");
    return value;
  }

  function map(length, depth) {
    const pairs = [];
    let previous = new Uint8Array();
    for (let i = 0; i < length; i++) {
      const start = at;
      const key = item(depth);
      if (typeof key !== "bigint" && typeof key !== "string" && !(key instanceof Uint8Array))
        throw fail("a map key of this type");
      const encoded = data.subarray(start, at);
      if (compare(encoded, previous) <= 0) throw fail("map keys that are not unique and in order");
      previous = encoded;
      pairs.push([key, item(depth)]);
    }
    return new CborMap(pairs);
  }

  function item(depth) {
    if (depth === 0) throw fail("nested too deeply");
    if (--left < 0) throw fail("too many items");
    const initial = data[take(1)];
    const major = initial >> 5;
    if (major === 7) {
      if (initial === 0xf4 || initial === 0xf5) return initial === 0xf5;
      if (initial === 0xf6) return null;
      if (initial < 0xf9 || initial > 0xfb) throw fail("a simple value that is not false, true or null");
      const width = 2 ** (initial - 0xf8);
      return float(take(width), width);
    }
    const value = argument(initial & 31);
    if (major === 0) return value;
    if (major === 1) return -1n - value;
    if (major === 2 || major === 3) {
      if (value > BigInt(data.length - at)) throw fail("it ends too early");
      const start = take(Number(value));
      const bytes = data.slice(start, at);
      return major === 2 ? bytes : fromUtf8(bytes, "CBOR text");
    }
    if (major === 4) return Array.from({ length: count(value, 1) }, () => item(depth - 1));
    if (major === 5) return map(count(value, 2), depth - 1);
    if (!tags.includes(Number(value))) throw fail("a tag that is not allowed here");
    return new Tagged(Number(value), item(depth - 1));
  }

  const value = item(LIMITS.CBOR_DEPTH);
  if (at !== data.length) throw fail("more bytes after the item");
  return value;
}

function halfToNumber(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 0x3ff];
  const size =
    exponent === 0
      ? fraction * 2 ** -24
      : exponent === 31
        ? fraction
          ? NaN
          : Infinity
        : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/** A float as CBOR writes it: initial byte and the shortest of 2, 4 or 8 bytes that holds it exactly. */
function shortestFloat(value) {
  if (Number.isNaN(value)) return fromHex("f97e00");
  const view = new DataView(new ArrayBuffer(9));
  view.setUint8(0, 0xfb);
  view.setFloat64(1, value);
  if (Math.fround(value) !== value) return new Uint8Array(view.buffer);
  view.setUint8(0, 0xfa);
  view.setFloat32(1, value);
  const bits = view.getUint32(1);
  const [sign, exponent, fraction] = [(bits >>> 16) & 0x8000, (bits >>> 23) & 255, bits & 0x7fffff];
  let half = null;
  if (exponent === 255) half = 0x7c00;
  else if (exponent === 0 && fraction === 0) half = 0;
  else if (exponent >= 113 && exponent <= 142 && !(fraction & 0x1fff))
    half = ((exponent - 112) << 10) | (fraction >> 13);
  else if (exponent >= 103 && exponent < 113) {
    const whole = (fraction | 0x800000) / 2 ** (126 - exponent);
    if (Number.isInteger(whole)) half = whole;
  }
  return half === null ? new Uint8Array(view.buffer, 0, 5) : concat([0xf9], bigEndian(half | sign, 2));
}

/** The head of an item: major type and argument. */
function cborHead(major, value) {
  const n = BigInt(value);
  if (n < 24n) return Uint8Array.of((major << 5) | Number(n));
  const width = n < 256n ? 1 : n < 65536n ? 2 : n < 2n ** 32n ? 4 : 8;
  return concat([(major << 5) | (24 + Math.log2(width))], bigEndian(n, width));
}

const cborBytes = (bytes) => concat(cborHead(2, bytes.length), bytes);
const cborText = (text) => concat(cborHead(3, utf8(text).length), utf8(text));
const cborArray = (items) => concat(cborHead(4, items.length), ...items);

// Field checks: each returns the value with its type, or says which field is wrong.

function arrayOf(value, length, what) {
  if (!Array.isArray(value)) throw malformed(what, "an array");
  if (length !== null && value.length !== length) throw malformed(what, `${length} items`, `${value.length}`);
  return value;
}

/** The values under the keys 1 to `count`, which must be all that there are. */
function fieldsOf(value, count, what) {
  if (!(value instanceof CborMap)) throw malformed(what, "a map");
  if (value.pairs.length !== count) throw malformed(what, `keys 1 to ${count}`, `${value.pairs.length} keys`);
  return value.pairs.map(([key, field], i) => {
    if (key !== BigInt(i + 1)) throw malformed(what, `key ${i + 1}`);
    return field;
  });
}

/** An integer from 0 to `maximum`; a number where that fits one exactly, else a BigInt. */
function uintOf(value, what, maximum = LIMITS.U63) {
  if (typeof value !== "bigint" || value < 0n || value > BigInt(maximum))
    throw malformed(what, `an integer from 0 to ${maximum}`);
  return typeof maximum === "bigint" ? value : Number(value);
}

function bytesOf(value, what, length, maximum) {
  if (!(value instanceof Uint8Array)) throw malformed(what, "a byte string");
  if (length != null && value.length !== length) throw malformed(what, `${length} bytes`, `${value.length} bytes`);
  if (maximum != null && value.length > maximum)
    throw malformed(what, `at most ${maximum} bytes`, `${value.length} bytes`);
  return value;
}

function textOf(value, what, maximum) {
  if (typeof value !== "string") throw malformed(what, "a text string");
  if (utf8(value).length > maximum) throw malformed(what, `at most ${maximum} bytes of UTF-8`);
  return value;
}

function booleanOf(value, what) {
  if (typeof value !== "boolean") throw malformed(what, "true or false");
  return value;
}

function floatOf(value, what, low, high) {
  if (typeof value !== "number" || !(value >= low && value <= high))
    throw malformed(what, `a float from ${low} to ${high}`);
  return value;
}
