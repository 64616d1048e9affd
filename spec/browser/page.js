// The page: what a person chooses, pastes and types, and the button.

const given = { receipt: null, evidence: null, fraud: null, keys: null, exchange: null, other: null, text: null };
const KIND_NAMES = { receipt: "Receipt", evidence: "Evidence", fraud: "Fraud file", keys: "Keys file", exchange: "Exchange", other: "Not checked here", text: "Answer’s text" };

/** Bytes of a file, or of the base64url text in which an API hands it out. */
function unwrap(bytes) {
  if (bytes.length > 2 * LIMITS.EVIDENCE_BYTES) return bytes;
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

/** What a file is. All begin as a map {1: version, 2: …, 3: …}; exchanges are JSON; the rest is the answer's text. */
function kindOf(bytes, name) {
  if (/\.exchange$/i.test(name) || isExchange(bytes)) return "exchange"; // a damaged one too: it is no answer
  if (optionFor(bytes)) return "other";
  if (bytes.length < 7 || bytes[0] >> 5 !== 5 || bytes[1] !== 1 || bytes[3] !== 2) return "text";
  if (bytes[4] >> 5 === 2) return "receipt"; // 2: a head
  if (bytes[4] >> 5 === 4) return "keys"; // 2: a list of statements
  return bytes[6] >> 5 === 4 ? "fraud" : "evidence"; // 2: a kind; 3: a list of manifests, or a head
}

/** The option of `verifiable verify` for a file that this page does not check; null for the others. */
function optionFor(bytes) {
  const start = new TextDecoder("latin1").decode(bytes.subarray(0, 4096));
  if (/^\s*data: ?\{/.test(start)) return "--stream";
  return /^\s*\{\s*"what":/.test(start) && start.includes('"checkpoints":') ? "--fork" : null;
}

/** Whether bytes are JSON of the members that an exchange has. An answer may be JSON too, but hardly that. */
function isExchange(bytes) {
  if (bytes[new TextDecoder("latin1").decode(bytes.subarray(0, 64)).search(/\S/)] !== 0x7b) return false;
  try {
    return ["version", "path", "body"].every((name) => Object.hasOwn(JSON.parse(new TextDecoder().decode(bytes)), name));
  } catch {
    return false;
  }
}

async function take(files) {
  for (const file of files) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const data = unwrap(bytes);
    const kind = kindOf(data, file.name);
    given[kind] = { name: file.name, bytes: kind === "text" ? bytes : data };
  }
  list();
}

/** Show what was chosen, each with a button that takes it away again. */
function list() {
  const items = Object.entries(KIND_NAMES).filter(([kind]) => given[kind]);
  byId("chosen").replaceChildren(
    ...items.map(([kind, label]) => {
      const { name, bytes } = given[kind];
      const button = element("button", "small", "Remove");
      button.type = "button";
      button.setAttribute("aria-label", `Remove: ${label}`);
      button.addEventListener("click", () => {
        given[kind] = null;
        list();
      });
      return element("li", "", `${label}: `, foreign(name), ` (${bytes.length.toLocaleString("en")} bytes) `, button);
    }),
  );
}

async function submit(event) {
  event.preventDefault();
  const result = byId("result");
  result.replaceChildren(element("p", "", "Checking…"));
  await breathe();
  try {
    if (given.other) {
      const said = `This page does not check that file: “verifiable verify ${optionFor(given.other.bytes)} FILE” does. Remove it to go on.`;
      result.replaceChildren(element("p", "verdict open", said));
      result.focus();
      return;
    }
    const pasted = byId("pasted").value.trim();
    const typed = byId("answer").value;
    const input = {
      receipt: pasted ? unwrap(utf8(pasted)) : (given.receipt?.bytes ?? null),
      evidence: given.evidence?.bytes ?? null,
      fraud: given.fraud?.bytes ?? null,
      keys: given.keys?.bytes ?? null,
      exchange: given.exchange?.bytes ?? null,
      text: given.text ? fromUtf8(given.text.bytes, "the text file") : typed === "" ? null : typed,
      trusted: byId("trusted").value,
      witnesses: byId("witnesses").value,
      quorum: byId("quorum").value,
    };
    if (input.receipt || input.evidence || input.fraud || input.exchange)
      show({ ...(await check(input)), receipt: input.receipt ?? input.exchange });
    else result.replaceChildren(element("p", "verdict open", "Choose an exchange, a receipt or an evidence file first."));
  } catch (error) {
    const why = error instanceof Failure ? "" : "This page has a fault, or the browser is too old. ";
    result.replaceChildren(element("p", "verdict failed", why, foreign(error.message)));
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
