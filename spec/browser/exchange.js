// What a client kept of its own: the file that it wrote itself, and its text, held against what was committed (step 10).

const SKEW = BigInt(LIMITS.CLOCK_SKEW);
const YOURS =
  "This rests on your own copy: make sure first that it is what you sent. If it is, somebody between you and the model " +
  "changed it.";

/** An exchange: request, and perhaps answer, receipt and times. */
function parseExchange(bytes) {
  if (bytes.length > LIMITS.EXCHANGE_BYTES) throw malformed("exchange", `at most ${LIMITS.EXCHANGE_BYTES} bytes`);
  const value = parseJson(bytes);
  if (!isObject(value)) throw malformed("exchange", "an object");
  const names = ["version", "path", "body", "text", "receipt", "sent", "received"];
  if (value.version !== 2) throw malformed("exchange version", "2", value.version);
  for (const name of Object.keys(value)) if (!names.includes(name)) throw malformed("exchange", names.join(", "), name);
  const field = (name, good) => {
    const given = value[name] ?? null;
    if (given !== null && !good(given)) throw malformed(`exchange: ${name}`);
    return given;
  };
  const time = (name) =>
    field(name, (given) => Number.isInteger(given) && given >= LIMITS.EARLIEST_MS && given <= LIMITS.JSON_NUMBER);
  const isString = (given) => typeof given === "string";
  const receipt = field("receipt", isString);
  const made = {
    request: readKept(value.path, value.body),
    text: field("text", (given) => isString(given) && isText(given)),
    receipt: receipt === null ? null : fromUrlBase64(receipt.replace(/=+$/, ""), "exchange: receipt"),
    sent: time("sent"),
    received: time("received"),
  };
  if (made.sent !== null && made.received !== null && made.received < made.sent)
    throw malformed("exchange", "received not before sent");
  return made;
}

/** A request as a client kept it. */
function readKept(path, body) {
  if (![CHAT, COMPLETION].includes(path) || !isObject(body)) throw malformed("exchange", "a known path and a body");
  try {
    const request = readBody(path, body);
    return { ...request, digest: sha256(utf8(request.canonical)) };
  } catch (error) {
    if (error instanceof Failure && error.code === "policy")
      throw malformed(`your copy of the request is none that a provider answers: ${error.message}`);
    throw error;
  }
}

/** Step 10: a client's own copy is what the turn committed to. `committed` is the request that evidence shows. */
function checkCopy(session, number, { request, sent, received }, committed, signed = session.head.time) {
  const span = session.spans[number];
  if (!span) throw new Failure("incomplete", `there is no turn ${number}`);
  const { turn } = span;
  if (!same(request.digest, turn.request)) {
    notAnother(number, "request", session.spans.filter((other) => same(other.turn.request, request.digest)));
    const known = committed && same(committed.digest, turn.request);
    const parts = known ? partsThatDiffer(request, committed) : null;
    const what = `turn ${number} answers another request than yours${parts ? `: ${parts.names.join(", ")} differ` : ""}`;
    throw new Failure(
      "request-differs",
      `${what}. ${YOURS}`,
      parts ? parts.mine : hex(request.digest),
      parts ? parts.theirs : hex(turn.request),
    );
  }
  checkFollows(session, turn, request);
  const opened = session.opened.time;
  const early = sent !== null && (number ? signed : opened) < BigInt(sent) - SKEW;
  const late = received !== null && opened > BigInt(received) + SKEW;
  if (early || late) {
    const found = late || !number ? opened : signed;
    const what =
      found === opened
        ? "the session was not opened when your request was on its way"
        : "the answer was signed before your request was sent";
    throw new Failure(
      "time-differs",
      `${what}; is your own clock right?`,
      `${sent ?? "…"} to ${received ?? "…"}, and 5 minutes`,
      showTime(found),
    );
  }
}

function partsThatDiffer(mine, theirs) {
  const [one, other] = [JSON.parse(mine.canonical), JSON.parse(theirs.canonical)];
  if (one.path !== other.path) return { names: ["path"], mine: one.path, theirs: other.path };
  const text = (body, name) => (Object.hasOwn(body, name) ? canonicalJson(body[name]) : null);
  const names = [...new Set([...Object.keys(one.body), ...Object.keys(other.body)])]
    .sort()
    .filter((name) => text(one.body, name) !== text(other.body, name));
  const shown = (body) => {
    const whole = names.map((name) => `${name}: ${text(body, name) ?? "absent"}`).join("; ");
    return whole.length > 300 ? `${whole.slice(0, 300)}…` : whole;
  };
  return { names, mine: shown(one.body), theirs: shown(other.body) };
}

/** What programs do to a text that is saved or copied, undone: as in verifiable/checking/near.py. */
const UNDONE = [
  [["a byte order mark", (text) => text.replace(/^\ufeff/, "")]],
  [
    ["line endings", (text) => text.replace(/\r\n?/g, "\n")],
    ["line endings", (text) => text.replace(/\r\n/g, "\n").replace(/\n/g, "\r\n")],
  ],
  [
    ["Unicode normalisation", (text) => text.normalize("NFC")],
    ["Unicode normalisation", (text) => text.normalize("NFD")],
  ],
  [
    ["spaces at its end", (text) => text.replace(/[ \t\r\n]+$/, "")],
    ["spaces at its end", (text) => `${text.replace(/[ \t\r\n]+$/, "")}\n`],
    ["spaces at its end", (text) => `${text.replace(/[ \t\r\n]+$/, "")} `],
    ["spaces at its beginning", (text) => ` ${text.replace(/^[ \t\r\n]+/, "")}`],
    ["spaces at its beginning", (text) => text.replace(/^[ \t\r\n]+/, "")],
    ["spaces at its beginning and end", (text) => text.replace(/^[ \t\r\n]+|[ \t\r\n]+$/g, "")],
  ],
];

/** In what alone a text differs from the committed one; null where it is something else. */
function nearlySame(text, digest) {
  if (text.length > 2 ** 20) return null;
  let ways = [{ names: [], text }];
  for (const choices of UNDONE)
    ways = ways.flatMap((way) => [
      way,
      ...choices.map(([name, undo]) => ({ names: [...way.names, name], text: undo(way.text) })),
    ]);
  ways.sort((a, b) => a.names.length - b.names.length);
  const found = ways.find((way) => same(sha256(utf8(way.text)), digest));
  return found ? found.names.join(" and ") : null;
}
