// Files that prove fraud by themselves: what a provider signed, and that it contradicts itself.

const FRAUD_MANIFESTS = { "two checkpoints": 1, token: 1, missing: 3 };

function parseFraud(data) {
  const [number, manifests, signed, leaves, proof] = unseal(data, 6, "fraud file", LIMITS.FRAUD_BYTES);
  const what = positive(uintOf(number, "fraud kind", 5), "fraud kind");
  const kind = ["", "two heads", "two checkpoints", "token", "missing", "two sizes"][what];
  const bounds = kind === "missing" ? [LIMITS.FRAUD_ENTRIES, LIMITS.ENTRY_BYTES] : [2, LIMITS.LEAF_BYTES];
  const listOf = (value, name, most, longest) => {
    if (arrayOf(value, null, name).length > most) throw malformed(name, `at most ${most}`);
    return value.map((item) => bytesOf(item, name, null, longest));
  };
  const file = {
    kind,
    manifests: listOf(manifests, "fraud manifests", FRAUD_MANIFESTS[kind] ?? 2, LIMITS.SIGNED_BYTES),
    signed: listOf(signed, "signed statements", 2, LIMITS.SIGNED_BYTES),
    opening: parseOpening(leaves, proof, ...bounds),
  };
  if (file.signed.length !== (file.kind === "token" ? 1 : 2)) throw malformed("signed statements");
  if (!file.manifests.length) throw malformed("fraud manifests");
  const { leaves: shown, proof: hashes } = file.opening;
  const shows = ["token", "missing"].includes(kind);
  if (shown.length > 0 !== shows) throw malformed("fraud file", "leaves exactly of a token or of the log");
  if (!shows && hashes.length > 0 !== (kind === "two sizes"))
    throw malformed("fraud file", "hashes exactly with leaves or two sizes");
  return file;
}

const nothing = (what) => new Failure("nothing-checked", `${what}: the file proves nothing against the provider`);

/** What a fraud file proves against the holder of a trusted key: a reason code, and where. */
function checkFraud(file, trusted, report, delay = BigInt(LIMITS.MERGE_DELAY)) {
  const chain = Chain.of(trusted).whole();
  const manifests = report.make(
    "Signed by a provider that you trust",
    () =>
      file.manifests.map((item) => {
        const { payload, key } = openEnvelope(item, chain, MANIFEST_TYPE);
        return { ...readingSigned(() => parseManifest(payload)), key, chain };
      }),
    ([manifest]) => signedBy(manifest.key, manifest, chain),
  );
  const proven = report.make(
    "The provider’s own signatures contradict each other",
    () => {
      // Anybody's key can sign another's name.
      const [root, ...roots] = manifests.map(({ key }) => chain.rootOf(key).kid);
      if (roots.some((other) => !same(root, other)))
        throw nothing("the manifests are of two providers");
      return FRAUDS[file.kind](file, manifests, delay);
    },
    (found) => found.what,
  );
  const revoked = manifests.flatMap(({ key, sessionKeys, log }) => [
    chain.revoked(key),
    ...sessionKeys.map((each) => chain.revoked(each, "session", key)),
    ...(log ? chain.logFamily(log).map((each) => chain.revoked(each, "log", key)) : []),
  ]);
  const named = [...new Set(revoked.filter(Boolean).map(revokedText))].join("; ");
  if (named) report.make("Revocations, which change nothing here", () => null, named);
  const by = signedBy(manifests[0].key, manifests[0], chain);
  return { session: null, turn: null, position: null, ...proven, signedBy: by };
}

const headUnder = (data, manifest) => {
  const { payload } = openEnvelope(data, manifest.sessionKeys, HEAD_TYPE);
  return readingSigned(() => parseHead(payload));
};

/** What `read` gives; null where it fails: nothing in a log may spoil the proof. */
function orNull(read) {
  try {
    return read();
  } catch (error) {
    if (error instanceof Failure) return null;
    throw error;
  }
}

/** The head that a log's entry seems to hold, by no signature; null where it holds none, or an interim one. */
const peekedHead = (entry) =>
  orNull(() => {
    const head = parseHead(parseEnvelope(entry).payload);
    return head.interim ? null : head;
  });

/** The head that an entry holds; null where it is none by these manifests. */
function loggedHead(entry, manifests) {
  const named = peekedHead(entry)?.manifest;
  const manifest = named && manifests.find(({ digest }) => same(digest, named));
  return manifest ? orNull(() => headUnder(entry, manifest)) : null;
}

function checkpointUnder(data, manifest) {
  if (!manifest.log) throw new Failure("untrusted-key", "the manifest names no log");
  return openCheckpoint(fromUtf8(data, "checkpoint"), manifest.chain.logFamily(manifest.log));
}

/** Two heads, each under its manifest. */
const twoHeads = (signed, manifests) => signed.map((data, i) => headUnder(data, manifests[i] ?? manifests[0]));

const FRAUDS = {
  "two sizes"({ signed, opening }, manifests) {
    const [one, other] = twoHeads(signed, manifests);
    if (!same(one.session, other.session) || one.size <= 0n || one.size >= other.size)
      throw nothing("the two heads are not a smaller and a larger one of one session");
    const [before, after] = rootsFromPrefix(one.size, other.size, opening.proof);
    if (!same(after, other.root)) throw nothing("the hashes are not of the larger head’s tree");
    if (same(before, one.root)) throw nothing("the larger head continues the smaller one");
    const what = `at size ${other.size} the session has not the first ${one.size} leaves that were signed for`;
    return { code: "two-histories", what, session: one.session };
  },
  "two heads"({ signed }, manifests) {
    const [one, other] = twoHeads(signed, manifests);
    if (!same(one.session, other.session) || one.size !== other.size || same(one.root, other.root)) {
      throw nothing("the two heads do not contradict each other");
    }
    return { code: "two-histories", what: `two roots for one session at size ${one.size}`, session: one.session };
  },
  "two checkpoints"({ signed }, [manifest]) {
    const [one, other] = signed.map((data) => checkpointUnder(data, manifest));
    if (one.size !== other.size || same(one.root, other.root))
      throw nothing("the two checkpoints do not contradict each other");
    return { code: "two-histories", what: `two roots of the log at size ${one.size}` };
  },
  token({ signed, opening }, [manifest]) {
    const head = headUnder(signed[0], manifest);
    differs("other-manifest", "the head was made under another manifest", manifest.digest, head.manifest);
    checkOpening(opening, head);
    const leaves = opening.leaves.map(({ data }) => parseLeaf(data));
    const [turn, token] = leaves;
    const fits = leaves.length === 2 && turn.kind === "turn" && token.kind === "token" && turn.turn === token.turn;
    if (!fits) throw malformed("fraud opening", "a turn and one of its tokens");
    if (leaves.some(({ session }) => !same(session, head.session)))
      throw nothing("the leaves are of another session");
    if (processorsOf(turn.params).active) throw nothing("the draw depends on tokens that are not shown");
    const key = samplingKey(turn.nonceSource, turn.nonce, turn.prompt);
    const seen = withoutSuppressed(token, manifest.suppressed);
    const allowed = acceptable(seen, turn.params, key, token.position);
    if (allowed.has(token.token)) throw nothing("the token follows from its record");
    const what = `its record gives id ${[...allowed].join(" or ")}, not ${token.token}`;
    return { code: "token-not-sampled", what, session: head.session, turn: turn.turn, position: token.position };
  },
  missing({ signed, opening }, manifests, delay) {
    const [manifest] = manifests;
    const head = headUnder(signed[0], manifest);
    if (head.interim) throw nothing("the head is one that is never logged");
    if (!same(head.manifest, manifest.digest)) throw nothing("the head was made under another manifest");
    const checkpoint = checkpointUnder(signed[1], manifest);
    checkOpening(opening, checkpoint);
    const entries = opening.leaves;
    const [first, last] = [entries[0].index, entries.at(-1).index];
    if (last - first + 1n !== BigInt(entries.length)) throw nothing("entries are left out");
    const logged = (data) => loggedHead(data, manifests);
    const seem = entries.map(({ data }) => ({ data, ...peekedHead(data) })).filter(({ session }) => session);
    for (const { data, session, size } of seem) {
      if (same(session, head.session) && size >= head.size && logged(data))
        throw nothing("the log has the head, or a later one");
    }
    const [oldest, newest] = [logged(entries[0].data), logged(entries.at(-1).data)];
    if (first && !(oldest && oldest.time <= head.time - delay))
      throw nothing("the head may stand before these entries");
    if (last + 1n < checkpoint.size && !(newest && newest.time >= head.time + delay))
      throw nothing("the head may stand after these entries");
    if (!seem.some(({ data, time }) => time >= head.time + delay && logged(data)))
      throw nothing("the log may still have been about to take it in");
    return {
      code: "missing-from-log",
      what: `none of the entries ${first} to ${last} is that head`,
      session: head.session,
    };
  },
};
