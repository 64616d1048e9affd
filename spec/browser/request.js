// Requests: their canonical form (RFC 8785), what may stand in them, and the parameters that follow.

const CHAT = "/v1/chat/completions";
const COMPLETION = "/v1/completions";
const SAMPLING = "temperature top_p min_p top_k seed max_tokens stop";
const PENALTIES = "frequency_penalty presence_penalty repeat_penalty repeat_last_n logit_bias ignore_eos";
const FORMS = "grammar response_format";
const COMMON = `${SAMPLING} ${PENALTIES} ${FORMS} model stream stream_options n user metadata store logprobs verifiable`;
const KNOWN = {
  [CHAT]: `${COMMON} messages max_completion_tokens top_logprobs`.split(" "),
  [COMPLETION]: `${COMMON} prompt echo best_of suffix`.split(" "),
};
/** Fields that may only have the values that change nothing, in canonical form. */
const HARMLESS = {
  n: ["1"],
  best_of: ["1"],
  echo: ["false"],
  suffix: ['""'],
  store: ["false", "true"],
  tools: ["[]"],
  tool_choice: ['"none"', '"auto"'],
  parallel_tool_calls: ["true", "false"],
  service_tier: ['"auto"', '"default"'],
};
const refused = (what) => new Failure("policy", what);

/** RFC 8785: no spaces, names in order of their UTF-16, numbers and strings as JavaScript writes them. */
function canonicalJson(value, depth = 0) {
  if (typeof value === "number" && !(Math.abs(value) <= Number.MAX_SAFE_INTEGER))
    throw refused("a number past 2^53 - 1");
  if (typeof value === "string" && !isText(value)) throw refused("a lone surrogate");
  if (typeof value === "object" && depth > 64) throw refused("nested too deeply"); // the body is at depth 1
  if (Array.isArray(value)) return `[${value.map((item) => canonicalJson(item, depth + 1)).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${canonicalJson(name, depth)}:${canonicalJson(value[name], depth + 1)}`).join(",")}}`;
}

/** JSON in which no object has a name twice. */
function parseJson(bytes) {
  const text = fromUtf8(bytes, "JSON");
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw malformed("JSON");
  }
  const open = [];
  let last = null;
  for (const [part] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]:]/g)) {
    if (part === "{" || part === "[") open.push(new Set());
    else if (part === "}" || part === "]") open.pop();
    else if (part === ":") {
      const names = open.at(-1);
      const name = JSON.parse(last);
      if (names.has(name)) throw malformed("JSON object", "each name once");
      names.add(name);
    }
    last = part;
  }
  return value;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const characters = (text) => [...text].length;

/** A client's request as it is sent: its canonical form and what follows from it. */
function readBody(path, body) {
  const canonical = canonicalJson({ body, path });
  for (const [name, value] of Object.entries(body)) {
    if (value === null) continue;
    if (Object.hasOwn(HARMLESS, name)) {
      if (!HARMLESS[name].includes(canonicalJson(value)))
        throw refused(`${name} with a value that cannot be replayed`);
    } else if (!KNOWN[path].includes(name)) throw refused(`the unknown parameter ${name}`);
  }
  const field = (holder, name) => (Object.hasOwn(holder, name) ? holder[name] : null);
  const number = (name, low, high, whole) => {
    const value = field(body, name);
    if (value === null) return null;
    if (typeof value !== "number" || !(value >= low && value <= high) || (whole && !Number.isInteger(value)))
      throw refused(name);
    return value;
  };
  const flag = (holder, name) => {
    const value = field(holder, name) ?? false;
    if (typeof value !== "boolean") throw refused(name);
    return value;
  };
  const object = (name, allowed) => {
    const value = field(body, name) ?? {};
    if (!isObject(value) || !Object.keys(value).every((key) => allowed.includes(key))) throw refused(name);
    return value;
  };
  const extra = object("verifiable", ["nonce", "session", "commitments"]);
  flag(object("stream_options", ["include_usage", "include_obfuscation"]), "include_usage");
  flag(body, "stream");
  const temperature = number("temperature", 0, 100);
  if (temperature !== null && temperature > 0 && temperature < 0.01) throw refused("temperature between 0 and 0.01");
  let maxTokens = number("max_tokens", 1, U31, true);
  if (path === CHAT) maxTokens = number("max_completion_tokens", 1, U31, true) ?? maxTokens;
  const model = field(body, "model");
  if (model !== null && (typeof model !== "string" || characters(model) > 256)) throw refused("model");
  const [nonce, session] = [field(extra, "nonce"), field(extra, "session")];
  if (nonce !== null && !(typeof nonce === "string" && /^(?:[0-9a-f]{2}){8,64}$/.test(nonce))) throw refused("nonce");
  if (session !== null && session !== "new" && !(typeof session === "string" && /^[0-9a-f]{32}$/.test(session)))
    throw refused("session");
  if (![null, "receipt", "none", "stream"].includes(field(extra, "commitments"))) throw refused("commitments");
  checkLogprobs(path, number, flag, body);
  const seed = number("seed", -Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER, true);
  return {
    path,
    canonical,
    messages: path === CHAT ? readMessages(field(body, "messages")) : null,
    prompt: path === COMPLETION ? readPrompt(field(body, "prompt")) : null,
    temperature,
    topK: number("top_k", -1, U31, true),
    topP: number("top_p", 0, 1),
    minP: number("min_p", 0, 1),
    maxTokens,
    seed,
    repeatPenalty: number("repeat_penalty", 0.01, 100) ?? 1,
    repeatLastN: number("repeat_last_n", -1, U31, true) ?? 64,
    frequencyPenalty: number("frequency_penalty", -2, 2) || 0,
    presencePenalty: number("presence_penalty", -2, 2) || 0,
    logitBias: readBiases(field(body, "logit_bias")),
    ignoreEos: flag(body, "ignore_eos"),
    constraint: readConstraint(field(body, "grammar"), field(body, "response_format")),
    stops: readStops(field(body, "stop")),
    nonce: nonce === null ? null : fromHex(nonce),
    nonceSource: nonce !== null ? 0 : seed !== null ? 1 : 2,
    session,
  };
}

function checkLogprobs(path, number, flag, body) {
  if (path === COMPLETION) number("logprobs", 0, 20, true);
  else {
    const top = number("top_logprobs", 0, 20, true);
    if (!flag(body, "logprobs") && top !== null) throw refused("top_logprobs without logprobs");
  }
}

/** [id, bias] by ascending id; biases of 0 change nothing and are left out. */
function readBiases(value) {
  if (value === null) return [];
  if (!isObject(value) || Object.keys(value).length > 1024) throw refused("logit_bias");
  for (const [id, bias] of Object.entries(value)) {
    const isId = /^(?:0|[1-9][0-9]{0,9})$/.test(id) && Number(id) <= U31;
    if (!isId || typeof bias !== "number" || !(bias >= -100 && bias <= 100)) throw refused("logit_bias");
  }
  return Object.entries(value)
    .filter(([, bias]) => bias !== 0)
    .map(([id, bias]) => [Number(id), bias])
    .sort(([a], [b]) => a - b);
}

const LONGEST_FORM = 65536;

/** The canonical form of the grammar or schema that the answer has to match, or no text. */
function readConstraint(grammar, format) {
  const form = format !== null && isObject(format) && canonicalJson(format) === '{"type":"text"}' ? null : format;
  if (grammar === null && form === null) return "";
  if (grammar !== null && form !== null) throw refused("grammar and response_format together");
  if (grammar !== null) {
    const good = typeof grammar === "string" && grammar !== "" && characters(grammar) <= LONGEST_FORM;
    if (!good) throw refused("grammar");
    return canonicalJson({ grammar });
  }
  const only = (object, names) => isObject(object) && Object.keys(object).every((name) => names.includes(name));
  let schema;
  if (isObject(form) && form.type === "json_object" && only(form, ["type", "schema"])) {
    schema = form.schema ?? { type: "object" };
  } else if (isObject(form) && form.type === "json_schema" && only(form, ["type", "json_schema"])) {
    const named = form.json_schema;
    if (!only(named, ["name", "description", "schema", "strict"]) || named.schema == null)
      throw refused("response_format");
    ({ schema } = named);
  } else throw refused("response_format");
  if (!isObject(schema) && typeof schema !== "boolean") throw refused("response_format");
  const canonical = canonicalJson({ schema });
  if (utf8(canonical).length > LONGEST_FORM) throw refused("response_format");
  return canonical;
}

function readMessages(messages) {
  if (!Array.isArray(messages) || !messages.length) throw refused("messages");
  return messages.map((message) => {
    if (!isObject(message) || !["system", "developer", "user", "assistant", "tool"].includes(message.role))
      throw refused("a message's role");
    for (const [name, value] of Object.entries(message)) {
      if (value !== null && !["role", "content", "name"].includes(name)) throw refused(`a message's ${name}`);
    }
    if (message.name != null && typeof message.name !== "string") throw refused("a message's name");
    let { content } = message;
    if (Array.isArray(content)) {
      if (!content.every((part) => isObject(part) && part.type === "text" && typeof part.text === "string"))
        throw refused("a message's parts");
      content = content.map((part) => part.text).join("");
    }
    if (typeof content !== "string") throw refused("a message's content");
    return { role: message.role, content };
  });
}

function readPrompt(prompt) {
  const isId = (item) => Number.isInteger(item) && item >= 0 && item <= U31;
  if (typeof prompt === "string" || (Array.isArray(prompt) && prompt.length && prompt.every(isId))) return prompt;
  throw refused("prompt");
}

function readStops(value) {
  const stops = value === null ? [] : typeof value === "string" ? [value] : value;
  const good = (stop) => typeof stop === "string" && stop !== "" && characters(stop) <= 256;
  if (!Array.isArray(stops) || stops.length > 16 || !stops.every(good)) throw refused("stop");
  return stops;
}

/** What a client sent, in bytes. */
function readRequest(path, bytes) {
  const body = parseJson(bytes);
  if (!isObject(body)) throw malformed("request body", "an object");
  return readBody(path, body);
}

/** A request in its canonical form, as evidence holds it; any other spelling is malformed. */
function readCanonical(bytes) {
  try {
    const value = parseJson(bytes);
    if (!isObject(value) || Object.keys(value).sort().join() !== "body,path")
      throw malformed("canonical request", "body and path");
    if (![CHAT, COMPLETION].includes(value.path) || !isObject(value.body))
      throw malformed("canonical request", "a known path and an object");
    const request = readBody(value.path, value.body);
    if (!same(utf8(request.canonical), bytes)) throw malformed("canonical request", "the form of RFC 8785");
    return { ...request, digest: sha256(bytes) };
  } catch (error) {
    if (error instanceof Failure && error.code === "policy") throw malformed(`canonical request: ${error.message}`);
    throw error;
  }
}

/** The parameters that a request means under a manifest's defaults; null where the prompt does not fit the context. */
function paramsOf(request, defaults, k, context, promptCount) {
  const room = context - promptCount;
  if (promptCount < 1 || room < 1) return null;
  const wanted = request.maxTokens ?? (request.path === CHAT ? room : 16);
  const topK = request.topK ?? defaults.topK;
  const repeats = request.repeatPenalty !== 1 && request.repeatLastN !== 0;
  return {
    temperature: request.temperature ?? defaults.temperature,
    topK: topK < 1 ? k : Math.min(topK, k),
    topP: request.topP ?? defaults.topP,
    minP: request.minP ?? defaults.minP,
    maxTokens: Math.min(wanted, room),
    repeatPenalty: repeats ? request.repeatPenalty : 1,
    repeatLastN: !repeats ? 0 : request.repeatLastN > 0 ? request.repeatLastN : U31,
    frequencyPenalty: request.frequencyPenalty,
    presencePenalty: request.presencePenalty,
    logitBias: request.logitBias,
    ignoreEos: request.ignoreEos,
    constraint: request.constraint && hex(sha256(utf8(request.constraint))),
  };
}

const stopDigest = (stops) => sha256(cborArray(stops.map(cborText)));

/** The text that an honest provider delivers for these tokens' bytes, and the token that completed a stop string. */
function deliverText(pieces, stops) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  let text = "";
  for (const [index, piece] of pieces.entries()) {
    text += decoder.decode(piece, { stream: true });
    const found = stops.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    if (found.length) return { text: text.slice(0, Math.min(...found)), stopped: index };
  }
  return { text, stopped: null };
}
