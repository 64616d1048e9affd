// Verdict statements: what an auditor found at a provider, with signed CWT claims (registry.md).

const VERDICT_TYPE = "application/vnd.verifiable.verdict+cbor";
const STATUSES = ["verified-receipt", "verified-exact", "verified-statistical", "failed", "inconclusive"];
const MILLION = 1_000_000;

/** Items that are sorted and stand there once each, at most as many as a statement has. */
function sortedOf(value, what, read, order) {
  const found = arrayOf(value, null, what);
  if (found.length > LIMITS.VERDICT_CODES) throw malformed(what, `at most ${LIMITS.VERDICT_CODES}`, found.length);
  found.forEach((item, at) => {
    read(item, what);
    if (at && order(found[at - 1], item) >= 0) throw malformed(what, "sorted, each once");
  });
  return found;
}

function parseVerdict(payload) {
  const [, report, time, status, counts, tokens, draw, codes, models, manifests, where] = versionedOf(
    decodeCbor(payload),
    11,
    "verdict statement",
  );
  bytesOf(report, "verdict: report digest", 32);
  uintOf(time, "verdict: time");
  if (!STATUSES.slice(1).includes(textOf(status, "verdict: status", 32))) throw malformed("verdict: status");
  const sessions = arrayOf(counts, 6, "verdict: counts").map((each) => uintOf(each, "verdict: sessions"));
  const [checked, total] = arrayOf(tokens, 2, "verdict: tokens").map((each) => uintOf(each, "verdict: tokens"));
  if (checked > total) throw malformed("verdict: tokens", `at most ${total} checked`, checked);
  if (draw !== null) {
    const [population, drawn, receipts, given, share, chance] = arrayOf(draw, 6, "verdict: draw");
    for (const each of [population, drawn, receipts]) uintOf(each, "verdict: draw");
    booleanOf(given, "verdict: seed given");
    for (const each of [share, chance]) uintOf(each, "verdict: chance", MILLION);
  }
  const code = (value, what) => {
    if (!/^[a-z0-9-]+$/.test(textOf(value, what, 64))) throw malformed(what, "small letters, digits and hyphens");
  };
  const digest = (value, what) => bytesOf(value, what, 32);
  sortedOf(codes, "verdict: reason codes", code, (a, b) => (a < b ? -1 : a > b ? 1 : 0));
  sortedOf(models, "verdict: model hashes", digest, compare);
  sortedOf(manifests, "verdict: manifest digests", digest, compare);
  if (where !== null && !/^https?:\/\/[!-~]*$/.test(textOf(where, "verdict: URL", LIMITS.URL_BYTES)))
    throw malformed("verdict: URL", "the scheme http or https, and printable ASCII");
  return { report, time, status, sessions, checked, total, codes, where };
}

/** A statement that the key which it names as its issuer signed, about somebody else. */
function checkVerdict(data) {
  const found = parseEnvelope(data, true);
  const [issuer, subject] = [PublicKey.parse(found.issuer), PublicKey.parse(found.subject)];
  const { payload } = openParsed(found, [issuer], VERDICT_TYPE);
  if (same(issuer.bytes, subject.bytes))
    throw new Failure("untrusted-key", "a verdict by the provider that it is about", "an auditor's own key");
  return { ...parseVerdict(payload), issuer, subject };
}
