// The page: reads what a person gives it, runs the checks, and says in words what came out.

const byId = (id) => document.getElementById(id);
const given = { receipt: null, evidence: null, text: null };

/** An element with children; strings become text, never markup. */
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Text that a stranger chose: kept from changing the direction of what stands around it. */
const foreign = (text) => element("bdi", "", String(text));
const hash = (bytes) => element("span", "hash", hex(bytes));

/** Bytes of a file, or of the base64url text in which an API hands it out. */
function unwrap(bytes) {
  if (bytes.length > 2 ** 28) return bytes;
  const start = new TextDecoder("latin1").decode(bytes.subarray(0, 64));
  if (!/^[A-Za-z0-9_-]+[=\s]*$/.test(start)) return bytes;
  const text = new TextDecoder("latin1").decode(bytes).trim().replace(/=+$/, "");
  if (!/^[A-Za-z0-9_-]+$/.test(text)) return bytes;
  try {
    return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
  } catch {
    return bytes;
  }
}

/** "receipt" or "evidence": both begin as a map {1: version, 2: …}, of a head's bytes or of a number; else "text". */
function kindOf(bytes) {
  if (bytes.length < 5 || bytes[0] >> 5 !== 5 || bytes[1] !== 1 || bytes[3] !== 2) return "text";
  return bytes[4] >> 5 === 2 ? "receipt" : "evidence";
}

async function take(files) {
  for (const file of files) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const data = unwrap(bytes);
    const kind = kindOf(data);
    given[kind] = { name: file.name, bytes: kind === "text" ? bytes : data };
  }
  const names = { receipt: "Receipt", evidence: "Evidence", text: "Answer’s text" };
  byId("chosen").replaceChildren(
    ...Object.entries(names)
      .filter(([kind]) => given[kind])
      .map(([kind, label]) =>
        element(
          "li",
          "",
          `${label}: `,
          foreign(given[kind].name),
          ` (${given[kind].bytes.length.toLocaleString("en")} bytes)`,
        ),
      ),
  );
}

const keysOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line && !line.startsWith("#"))
    .map((line) => PublicKey.parse(line));

/** The browser's own opinion of signatures that held here: "agrees", "differs", or null where it has none. */
async function crossCheck(signatures) {
  try {
    for (const { key, message, signature } of signatures) {
      const imported = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
      if (!(await crypto.subtle.verify({ name: "Ed25519" }, imported, signature, message))) return "differs";
    }
    return "agrees";
  } catch {
    return null; // no secure context, or a browser without Ed25519
  }
}

const breathe = () => new Promise((resolve) => setTimeout(resolve));

/** Run all checks. Returns what the page shows: steps, the failure if there is one, and what was read. */
async function check({ receipt, evidence, trusted, text }) {
  const report = new Report();
  const found = { steps: report.steps, failure: null, session: null, replayed: 0, text, log: false };
  checkedSignatures.length = 0;
  try {
    const keys = keysOf(trusted);
    if (!keys.length) throw new Failure("untrusted-key", "No key to trust was entered");
    let held = null;
    if (receipt) {
      report.about = "Receipt";
      const parsed = report.make(
        "The receipt is well formed and undamaged",
        () => parseReceipt(receipt),
        "its checksum fits",
      );
      held = checkReceipt(parsed, keys, evidence || text === null ? null : text, report);
      Object.assign(found, { session: held, turn: parsed.turn, log: parsed.log !== null });
    }
    if (evidence) {
      await breathe();
      report.about = "Evidence";
      const parsed = report.make(
        "The evidence is well formed and undamaged",
        () => parseEvidence(evidence),
        () => "its checksum fits",
      );
      const session = checkEvidence(parsed, keys, report);
      if (held)
        report.make(
          "Receipt and evidence tell the same history",
          () => checkSameHistory(held, session),
          "of this session",
        );
      const turn = held ? found.turn : Math.max(0, ...session.turns.map((opened) => opened.turn.turn));
      Object.assign(found, {
        session: { ...session, spans: held?.spans.length > session.spans.length ? held.spans : session.spans },
        turn,
      });
      if (text !== null) checkText(found.session, turn, text, report);
      found.replayed = await replayAll(session, report);
    }
    report.about = "This page";
    const opinion = await crossCheck(checkedSignatures);
    if (opinion) {
      report.make(
        "Your browser’s own cryptography agrees",
        () => {
          if (opinion === "differs")
            throw new Failure("page-fault", "your browser’s Ed25519 and this page’s disagree: use another browser");
        },
        `${checkedSignatures.length} signatures`,
      );
    }
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (report.steps.at(-1)?.failure !== error) {
      report.steps.push({
        about: report.about,
        name: "The rest",
        passed: false,
        detail: error.message,
        failure: error,
      });
    }
    found.failure = error;
  }
  return found;
}

async function replayAll(session, report) {
  let replayed = 0;
  for (const opened of session.turns.filter(({ shown }) => shown.length)) {
    await breathe();
    const detail = `${opened.shown.length} of ${opened.end.completionCount} tokens`;
    report.make(
      `Turn ${opened.turn.turn}: each token shown follows from its record`,
      () => checkReplay(opened),
      detail,
    );
    replayed += opened.shown.length;
  }
  return replayed;
}

function verdictOf({ failure, replayed, session }) {
  if (!failure) {
    const tokens = replayed ? ` ${replayed} tokens follow from their records and the key of the draw.` : "";
    const said = `Signed by ${session.manifest.provider}, and nothing was changed since.${tokens}`;
    return element("section", "verdict holds", element("h2", "", "✓ It holds"), element("p", "", foreign(said)));
  }
  const open = INCONCLUSIVE.includes(failure.code) || failure.code === "page-fault";
  const box = element(
    "section",
    open ? "verdict open" : "verdict failed",
    element("h2", "", open ? "– Not decided" : "✗ It does not hold"),
  );
  const message = failure.message[0].toUpperCase() + failure.message.slice(1);
  box.append(element("p", "", foreign(message), "."), element("p", "", MEANING[failure.code] ?? ""));
  const facts = [["Reason code", element("code", "", failure.code)]];
  if (failure.expected != null) facts.push(["Expected", foreign(failure.expected)]);
  if (failure.found != null) facts.push(["Found", foreign(failure.found)]);
  box.append(definitions(facts));
  return box;
}

const definitions = (pairs) =>
  element("dl", "", ...pairs.flatMap(([term, value]) => [element("dt", "", term), element("dd", "", value)]));

function stepsOf(steps) {
  const items = steps.map(({ name, passed, detail }) => {
    const word = passed ? "Holds" : "Fails";
    const mark = element("span", "mark", passed ? "✓" : "✗");
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", word);
    return element(
      "li",
      passed ? "holds" : "failed",
      mark,
      element("div", "", name, element("div", "detail", foreign(detail ?? ""))),
    );
  });
  const groups = [...new Set(steps.map(({ about }) => about))];
  const lists = groups.map((group) =>
    element(
      "section",
      "",
      element("h3", "", group),
      element("ol", "steps", ...items.filter((_, i) => steps[i].about === group)),
    ),
  );
  return element("section", "", element("h2", "", "What was checked"), ...lists);
}

function factsOf({ session, turn }) {
  const { manifest, head, opened, key, closed } = session;
  const file = manifest.files.map(({ name, sha256: digest, size }) =>
    element("div", "", foreign(name), ` (${size.toLocaleString("en")} bytes) sha256 `, hash(digest)),
  );
  const facts = element("section", "", element("h2", "", "What was signed"));
  facts.append(
    definitions([
      ["Provider", foreign(manifest.provider)],
      ["Signing key", element("span", "", foreign(key.name), " ", hash(key.kid))],
      ["Session", hash(head.session)],
      ["Time", `opened ${showTime(opened.time)}, signed ${showTime(head.time)}${closed ? ", closed" : ""}`],
      ["Model", element("div", "", ...file)],
      [
        "Runtime",
        element(
          "span",
          "",
          foreign(manifest.build),
          ", KV cache ",
          foreign(manifest.cacheTypes.join("/")),
          ", fingerprint ",
          hash(manifest.fingerprint),
        ),
      ],
    ]),
  );
  for (const span of session.spans)
    facts.append(
      turnOf(
        span,
        span.turn.turn === turn,
        session.turns?.find((other) => other.turn.turn === span.turn.turn),
      ),
    );
  return facts;
}

function turnOf({ turn, end }, mine, openedTurn) {
  const { temperature, topK, topP, minP, maxTokens } = turn.params;
  const section = element("section", "", element("h3", "", `Turn ${turn.turn}${mine ? " (this answer)" : ""}`));
  section.append(
    definitions([
      ["Tokens", `${turn.promptCount} in, ${end.completionCount} out; ${FINISH[end.finish]}`],
      [
        "Settings",
        `temperature ${temperature}, top_k ${topK}, top_p ${topP}, min_p ${minP}, at most ${maxTokens} tokens`,
      ],
      ["Nonce", NONCE[turn.nonceSource]],
      ["Text", element("span", "", "sha256 ", hash(end.text))],
    ]),
  );
  const request = openedTurn?.request;
  for (const { role, content } of request?.messages ?? [])
    section.append(element("p", "detail", foreign(role)), element("blockquote", "", foreign(content)));
  if (request?.prompt)
    section.append(
      element("p", "detail", "prompt"),
      element(
        "blockquote",
        "",
        foreign(typeof request.prompt === "string" ? request.prompt : request.prompt.join(" ")),
      ),
    );
  return section;
}

function show(found) {
  const parts = [verdictOf(found), stepsOf(found.steps)];
  if (found.session) {
    const notes = notShown(found).map((note) => element("li", "", note));
    parts.push(factsOf(found), element("h2", "", "What this does not show"), element("ul", "", ...notes));
    if (given.receipt || byId("pasted").value)
      parts.push(
        element(
          "p",
          "hint",
          "A receipt also opens the session’s evidence. Whoever gets the file can read the conversation.",
        ),
      );
  }
  byId("result").replaceChildren(...parts);
}

async function submit(event) {
  event?.preventDefault();
  const result = byId("result");
  result.replaceChildren(element("p", "", "Checking…"));
  await breathe();
  try {
    const pasted = byId("pasted").value.trim();
    const receipt = pasted ? unwrap(utf8(pasted)) : (given.receipt?.bytes ?? null);
    const typed = byId("answer").value;
    const text = given.text ? fromUtf8(given.text.bytes, "the text file") : typed === "" ? null : typed;
    if (!receipt && !given.evidence) {
      result.replaceChildren(element("p", "verdict open", "Choose a receipt or an evidence file first."));
      return;
    }
    show(await check({ receipt, evidence: given.evidence?.bytes ?? null, trusted: byId("trusted").value, text }));
  } catch (error) {
    const why = error instanceof Failure ? error.message : "This page has a fault, or the browser is too old";
    result.replaceChildren(element("p", "verdict failed", `${why}. (${error.message})`));
  }
  result.focus();
}

if (typeof document !== "undefined") {
  byId("form").addEventListener("submit", submit);
  byId("files").addEventListener("change", (event) => take(event.target.files));
  const drop = byId("drop");
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop") take(event.dataTransfer.files);
    });
  }
  window.verifiableInference = { runVectors, check, crossCheck, fromHex, fromBase64 };
}
