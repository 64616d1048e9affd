// What a provider says of its keys: successions and revocations, and the chain that follows from the trusted ones.

const KEY_TYPE = (name) => `application/vnd.verifiable.${name}+cbor`;
const KEY_ROLES = ["provider", "session", "log"];

/** The statements of a keys file, as they were signed. Nothing in it is verified. */
function parseKeys(data) {
  if (data.length > LIMITS.KEYS_BYTES) throw malformed("keys file", `at most ${LIMITS.KEYS_BYTES} bytes`);
  const [statements] = unseal(data, 2, "keys file", LIMITS.KEYS_BYTES);
  if (arrayOf(statements, null, "keys file: statements").length > LIMITS.KEY_STATEMENTS)
    throw malformed("keys file: statements", `at most ${LIMITS.KEY_STATEMENTS}`);
  return statements.map((item) => bytesOf(item, "keys file: statement", null, LIMITS.ENTRY_BYTES));
}

const keyOf = (value) => PublicKey.parse(textOf(value, "statement on keys: key", LIMITS.KEY_BYTES));
const roleOf = (value) => KEY_ROLES[uintOf(value, "statement on keys: role", 2)];

/** A succession, of which both keys signed what they must. */
function openSuccession(data) {
  const outer = parseEnvelope(data);
  const fields = versionedOf(decodeCbor(parseEnvelope(outer.payload).payload), 5, "succession");
  const said = { role: roleOf(fields[1]), old: keyOf(fields[2]), new: keyOf(fields[3]), time: uintOf(fields[4], "time") };
  if (said.role === "session") throw malformed("succession: role", "provider or log");
  if (same(said.old.kid, said.new.kid)) throw malformed("succession: new key", "another than the old one");
  if (said.role === "log" && said.old.name !== said.new.name) throw malformed("succession: name of a log’s key");
  openEnvelope(outer.payload, [said.new], KEY_TYPE("successor"));
  openEnvelope(data, [said.old], KEY_TYPE("succession"));
  return said;
}

/** A revocation that one of these provider keys signed, its `signer`. */
function openRevocation(data, providers) {
  const fields = versionedOf(decodeCbor(parseEnvelope(data).payload), 5, "revocation");
  const reason = textOf(fields[4], "revocation: reason", LIMITS.REASON_BYTES);
  const said = { role: roleOf(fields[1]), key: keyOf(fields[2]), time: uintOf(fields[3], "time"), reason };
  if (!reason || /[\u0000-\u001f\u007f-\u009f]/.test(reason)) throw malformed("revocation: reason");
  return { ...said, signer: openEnvelope(data, providers, KEY_TYPE("revocation")).key };
}

const isKey = (key) => (other) => same(key.kid, other.kid);
const linkFrom = (links, key) => links.find(({ old }) => same(old.kid, key.kid));

/** A key and its successors, each once. */
function walkKeys(start, links) {
  const keys = [start];
  for (let said = linkFrom(links, start); said && !keys.some(isKey(said.new)); said = linkFrom(links, said.new))
    keys.push(said.new);
  return keys;
}

/** A key and all that successions tie to it, in either direction. */
function familyOf(key, successions) {
  const family = [key];
  for (const known of family) // grows as it goes
    for (const { old, new: next } of successions)
      if (same(old.kid, known.kid) || same(next.kid, known.kid))
        for (const each of [old, next]) if (!family.some(isKey(each))) family.push(each);
  return family;
}

/** Keys, and all that they ever named as successors, followed or not: who may revoke them. */
function namedBy(starts, successions) {
  const named = [...starts];
  for (const key of named) // grows as it goes
    for (const said of successions) if (same(said.old.kid, key.kid) && !named.some(isKey(said.new))) named.push(said.new);
  return named;
}

/** The one succession of each old key; one that has ended names no successor, and one with two has none. */
function linksOf(successions, ended, ignored) {
  const links = [];
  const two = [];
  for (const said of [...successions].sort((a, b) => Number(a.time - b.time))) {
    const known = linkFrom(links, said.old);
    if (ended.some(isKey(said.old)))
      ignored.push(`the succession of ${said.old.label} by ${said.new.label}: the old key revoked itself`);
    else if (!known) links.push(said);
    else if (!same(known.new.kid, said.new.kid)) {
      two.push(said.old);
      ignored.push(`${said.old.label} has two successors, ${known.new.label} and ${said.new.label}: neither is followed`);
    }
  }
  return links.filter(({ old }) => !two.some(isKey(old)));
}

/** The provider keys that count: those that the reader trusts, and all that succeed them. It stands for trusted keys. */
class Chain {
  static of(trusted) {
    return trusted instanceof Chain ? trusted : new Chain(trusted, []);
  }

  constructor(trusted, statements) {
    this.trusted = trusted.filter((key, i) => trusted.findIndex(isKey(key)) === i);
    this.ignored = [];
    const [successions, revocations] = this.read(statements);
    const ofRole = (said, role) => said.filter((each) => each.role === role);
    const own = ofRole(revocations, "provider").filter(({ key, signer }) => same(key.kid, signer.kid));
    this.named = ofRole(successions, "provider");
    const ended = own.map(({ key }) => key);
    this.links = linksOf(this.named, ended, this.ignored);
    this.keys = [];
    for (const start of this.trusted)
      for (const key of this.after(start))
        if (!this.keys.some(isKey(key))) this.keys.push(this.trusted.find(isKey(key)) ?? key);
    const may = namedBy(this.trusted, this.named);
    this.revocations = revocations.filter(({ role, key, signer }) => {
      const entitled = role !== "provider" || namedBy([key], this.named).some(isKey(signer));
      if (entitled && may.some(isKey(signer))) return true;
      this.ignored.push(`the revocation of ${key.label}: ${signer.label} may not revoke it`);
      return false;
    });
    this.logNames = ofRole(successions, "log");
    this.logLinks = linksOf(this.logNames, [], this.ignored);
  }

  /** The statements that are signed as they must be. A revocation may come before what its signer follows by. */
  read(statements) {
    const unique = statements.filter((data, i) => statements.findIndex((other) => same(other, data)) === i);
    const [successions, revocations, others] = [[], [], []];
    const attempt = (number, step) => {
      try {
        step();
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        this.ignored.push(`statement ${number}: ${error.message}`);
      }
    };
    unique.forEach((data, i) =>
      attempt(i + 1, () => {
        const { typ } = parseEnvelope(data);
        if (typ === KEY_TYPE("succession")) successions.push(openSuccession(data));
        else if (typ === KEY_TYPE("revocation")) others.push([i + 1, data]);
        else this.ignored.push(`statement ${i + 1}: of an unknown type`);
      }),
    );
    const news = successions.filter(({ role }) => role === "provider").map((said) => said.new);
    for (const [number, data] of others)
      attempt(number, () => revocations.push(openRevocation(data, [...this.trusted, ...news])));
    return [successions, revocations];
  }

  find(test) {
    return this.keys.find(test);
  }

  /** A provider key, and those that succeed it. */
  after(key) {
    return walkKeys(key, this.links);
  }

  /** A log’s key, and those that succeed it under its name, oldest first. */
  logs(key) {
    return walkKeys(key, this.logLinks.filter(({ old }) => old.name === key.name));
  }

  /** A log’s key with all that it ever named as its successors, or that named it: who can speak against the log. */
  logFamily(key) {
    return familyOf(key, this.logNames.filter(({ old }) => old.name === key.name));
  }

  /** The key by which the reader trusts a provider key, the oldest of several; keys that lead to one are one provider’s. */
  rootOf(key) {
    if (!this.keys.some(isKey(key))) return key;
    const family = familyOf(key, this.links);
    const order = (a, b) => this.after(b).length - this.after(a).length || (hex(a.kid) < hex(b.kid) ? 1 : -1);
    return this.trusted.filter((root) => family.some(isKey(root))).sort(order)[0];
  }

  /** The same with all keys that these ever named, followed or not: who can speak against the provider. */
  whole() {
    const reached = namedBy(this.trusted, this.named);
    const keys = [...this.keys, ...reached.filter((key) => !this.keys.some(isKey(key)))];
    const links = this.named.filter(({ old }) => reached.some(isKey(old)));
    return Object.assign(Object.create(Chain.prototype), this, { keys, links });
  }

  nameOf(key) {
    const root = this.rootOf(key);
    return same(root.kid, key.kid) ? root.label : `${root.label}, now ${key.label}`;
  }

  /** The earliest revocation of a key in a role; `under` is the provider key whose manifest names it. */
  revoked(key, role = "provider", under = null) {
    const entitled = under && namedBy([under], this.named);
    const found = this.revocations.filter(
      (said) => said.role === role && same(said.key.kid, key.kid) && (!entitled || entitled.some(isKey(said.signer))),
    );
    return found.sort((a, b) => Number(a.time - b.time))[0] ?? null;
  }
}

/** Those of the keys that a session’s head rests on: its session key’s, and the provider’s over that. */
function revocationsOf({ chain, key, sessionKey }) {
  return [chain.revoked(sessionKey, "session", key), chain.revoked(key)].filter(Boolean);
}

const revokedText = ({ role, key, reason }) => `the ${role} key ${key.label} was revoked: ${reason}`;

/** Which revocations came later than the head says, unless a quorum of witnesses saw it before; throws for the others. */
function checkRevocations(session, quorum, report) {
  const later = [];
  const said = revocationsOf(session);
  if (!said.length) return later;
  report.make(
    "The keys counted when it was signed",
    () => {
      const seen = session.logged && quorum ? cosignedBy(session.logged, quorum) : null;
      for (const each of said) {
        if (session.head.time >= each.time)
          throw new Failure("key-revoked", revokedText(each), `signed before ${showTime(each.time)}`, showTime(session.head.time));
        if (seen === null || seen >= each.time) later.push(revokedText(each));
      }
    },
    () => said.map(revokedText).join("; "),
  );
  return later;
}

/** When the quorum had cosigned the checkpoint of a log proof, in ms, the second’s end; null where it had not. */
function cosignedBy({ note, log }, { witnesses, needed }) {
  const times = [...openCheckpoint(note, log, witnesses).times.values()].sort((a, b) => Number(a - b));
  return times.length < needed ? null : times[needed - 1];
}
