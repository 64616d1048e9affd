// Files that prove fraud by themselves: what a provider signed, and that it contradicts itself.

const MERGE_DELAY = 86_400_000n; // milliseconds

function parseFraud(data) {
  const [kind, manifests, signed, leaves, proof, entries] = unseal(data, 7, "fraud file", LIMITS.FRAUD_BYTES);
  const what = positive(uintOf(kind, "fraud kind", 5), "fraud kind");
  const listOf = (value, name, most, longest) => {
    if (arrayOf(value, null, name).length > most) throw malformed(name, `at most ${most}`);
    return value.map((item) => bytesOf(item, name, null, longest));
  };
  const file = {
    kind: ["", "two heads", "two checkpoints", "token", "missing", "two sizes"][what],
    manifests: listOf(manifests, "fraud manifests", 2, LIMITS.SIGNED_BYTES),
    signed: listOf(signed, "signed statements", 2, LIMITS.SIGNED_BYTES),
    opening: parseOpening(leaves, proof),
    entries: listOf(entries, "log entries", LIMITS.FRAUD_ENTRIES, LIMITS.ENTRY_BYTES),
  };
  if (file.signed.length !== (file.kind === "token" ? 1 : 2)) throw malformed("signed statements");
  if (file.manifests.length !== 1 && !(["two heads", "two sizes"].includes(file.kind) && file.manifests.length === 2)) {
    throw malformed("fraud manifests");
  }
  const { leaves: shown, proof: hashes } = file.opening;
  if (shown.length > 0 !== (file.kind === "token")) throw malformed("fraud file", "leaves exactly where a token is shown");
  if (file.kind !== "token" && hashes.length > 0 !== (file.kind === "two sizes"))
    throw malformed("fraud file", "hashes exactly with leaves or two sizes");
  if (file.entries.length && file.kind !== "missing")
    throw malformed("fraud file", "entries only with a missing head");
  return file;
}

const nothing = (what) => new Failure("nothing-checked", `${what}: the file proves nothing against the provider`);

/** What a fraud file proves against the holder of a trusted key: a reason code, and where. */
function checkFraud(file, trusted, report, delay = MERGE_DELAY) {
  const chain = Chain.of(trusted);
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
    () => FRAUDS[file.kind](file, manifests, delay),
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

/** The head that a log's entry holds; null where it is none: nothing in a log may spoil the proof. */
function loggedHead(entry, manifest) {
  try {
    const head = headUnder(entry, manifest);
    return head.interim ? null : head;
  } catch (error) {
    if (error instanceof Failure) return null;
    throw error;
  }
}

function checkpointUnder(data, manifest) {
  if (!manifest.log) throw new Failure("untrusted-key", "the manifest names no log");
  return openCheckpoint(fromUtf8(data, "checkpoint"), manifest.chain.logFamily(manifest.log));
}

/** Two heads, each under its manifest, where one key signed those. */
function headsOfOne(signed, manifests) {
  const [root, ...roots] = manifests.map(({ key, chain }) => chain.rootOf(key).kid);
  if (roots.some((other) => !same(root, other)))
    throw nothing("the manifests are of two providers");
  return signed.map((data, i) => headUnder(data, manifests[i] ?? manifests[0]));
}

const FRAUDS = {
  "two sizes"({ signed, opening }, manifests) {
    const [one, other] = headsOfOne(signed, manifests);
    if (!same(one.session, other.session) || one.size <= 0n || one.size >= other.size)
      throw nothing("the two heads are not a smaller and a larger one of one session");
    const [before, after] = rootsFromPrefix(one.size, other.size, opening.proof);
    if (!same(after, other.root)) throw nothing("the hashes are not of the larger head’s tree");
    if (same(before, one.root)) throw nothing("the larger head continues the smaller one");
    const what = `at size ${other.size} the session has not the first ${one.size} leaves that were signed for`;
    return { code: "two-histories", what, session: one.session };
  },
  "two heads"({ signed }, manifests) {
    const [one, other] = headsOfOne(signed, manifests);
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
  missing({ signed, entries }, [manifest], delay) {
    const head = headUnder(signed[0], manifest);
    if (head.interim) throw nothing("the head is one that is never logged");
    const checkpoint = checkpointUnder(signed[1], manifest);
    const root = treeRoot(entries.map(leafHash));
    if (BigInt(entries.length) !== checkpoint.size || !same(root, checkpoint.root))
      throw nothing("the entries are not the whole log");
    let latest = 0n;
    for (const entry of entries) {
      const logged = loggedHead(entry, manifest);
      if (!logged) continue;
      if (same(logged.session, head.session) && logged.size >= head.size)
        throw nothing("the log has the head, or a later one");
      if (logged.time > latest) latest = logged.time;
    }
    if (latest < head.time + delay) throw nothing("the log may still have been about to take it in");
    return {
      code: "missing-from-log",
      what: `none of ${entries.length} entries is that head`,
      session: head.session,
    };
  },
};
