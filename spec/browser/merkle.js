// The Merkle tree of RFC 9162 §2.1 over SHA-256. Sizes and indices are BigInt.

const leafHash = (entry) => sha256(concat([0], entry));
const nodeHash = (left, right) => sha256(concat([1], left, right));

/** The largest power of two below n, for n > 1. */
const splitAt = (n) => 1n << BigInt((n - 1n).toString(2).length - 1);

function treeRoot(hashes) {
  if (!hashes.length) return sha256(new Uint8Array());
  if (hashes.length === 1) return hashes[0];
  const k = Number(splitAt(BigInt(hashes.length)));
  return nodeHash(treeRoot(hashes.slice(0, k)), treeRoot(hashes.slice(k)));
}

function checkHashes(code, hashes) {
  if (hashes.some((hash) => hash.length !== 32)) throw new Failure(code, "a hash of the wrong length", "32 bytes");
}

/** RFC 9162 §2.1.3.2. */
function checkInclusion(leaf, index, size, path, root) {
  const bad = (why) => new Failure("bad-inclusion-proof", `the inclusion proof ${why}`);
  if (index < 0n || index >= size) throw bad("is for an index outside the tree");
  checkHashes("bad-inclusion-proof", [leaf, ...path]);
  let [fn, sn, r] = [index, size - 1n, leaf];
  for (const p of path) {
    if (sn === 0n) throw bad("is too long");
    if (fn & 1n || fn === sn) {
      r = nodeHash(p, r);
      while (!(fn & 1n) && fn) [fn, sn] = [fn >> 1n, sn >> 1n];
    } else r = nodeHash(r, p);
    [fn, sn] = [fn >> 1n, sn >> 1n];
  }
  if (sn) throw bad("is too short");
  if (!same(r, root)) throw bad("does not lead to the root");
}

/** RFC 9162 §2.1.4.2; sizes 0 and equal sizes take an empty proof. */
function checkConsistency(m, n, path, oldRoot, newRoot) {
  const bad = (why) => new Failure("bad-consistency-proof", `the consistency proof ${why}`);
  if (m < 0n || m > n) throw bad("is for sizes in the wrong order");
  if ((m === 0n && !same(oldRoot, treeRoot([]))) || (n === 0n && !same(newRoot, treeRoot([]))))
    throw bad("has a wrong empty root");
  if (m === 0n || m === n) {
    if (path.length || (m === n && !same(oldRoot, newRoot)))
      throw bad("is for equal sizes or an empty tree, and does not fit");
    return;
  }
  const [fr, sr] = rootsFromPrefix(m, n, (m & (m - 1n)) === 0n ? [oldRoot, ...path] : path);
  if (!same(fr, oldRoot) || !same(sr, newRoot)) throw bad("does not lead to the roots");
}

/** The roots of the first m and of all n leaves, from a consistency proof with the node that the RFC leaves out. */
function rootsFromPrefix(m, n, path) {
  const bad = (why) => new Failure("bad-consistency-proof", `the consistency proof ${why}`);
  if (m <= 0n || m >= n) throw bad("is for sizes in the wrong order");
  if (!path.length) throw bad("is empty");
  checkHashes("bad-consistency-proof", path);
  let [fn, sn] = [m - 1n, n - 1n];
  while (fn & 1n) [fn, sn] = [fn >> 1n, sn >> 1n];
  let [fr, sr] = [path[0], path[0]];
  for (const c of path.slice(1)) {
    if (sn === 0n) throw bad("is too long");
    if (fn & 1n || fn === sn) {
      [fr, sr] = [nodeHash(c, fr), nodeHash(c, sr)];
      while (!(fn & 1n) && fn) [fn, sn] = [fn >> 1n, sn >> 1n];
    } else sr = nodeHash(sr, c);
    [fn, sn] = [fn >> 1n, sn >> 1n];
  }
  if (sn) throw bad("is too short");
  return [fr, sr];
}

/**
 * The root that follows from some leaves of a tree of `size` and the hashes of what is between them.
 * `leaves`: [index, leaf hash], ascending. Also returns the hidden subtrees as [low, high, hash].
 */
function rootFromMultiproof(size, leaves, proof) {
  const bad = (why) => new Failure("bad-inclusion-proof", `the proof of the leaves ${why}`);
  if (leaves.some(([index]) => index < 0n || index >= size)) throw bad("has an index outside the tree");
  checkHashes("bad-inclusion-proof", [...leaves.map(([, hash]) => hash), ...proof]);
  const hidden = [];
  function walk(low, high, first, end) {
    if (first === end) {
      if (hidden.length === proof.length) throw bad("is too short");
      const hash = proof[hidden.length];
      hidden.push([low, high, hash]);
      return hash;
    }
    if (high - low === 1n) return leaves[first][1];
    const middle = low + splitAt(high - low);
    let border = first;
    while (border < end && leaves[border][0] < middle) border++;
    const left = walk(low, middle, first, border);
    return nodeHash(left, walk(middle, high, border, end));
  }
  const root = size === 0n ? treeRoot([]) : walk(0n, size, 0, leaves.length);
  if (hidden.length !== proof.length) throw bad("is too long");
  return { root, hidden };
}
