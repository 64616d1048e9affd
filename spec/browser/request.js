// Requests: their canonical form (RFC 8785), what may stand in them, and the parameters that follow.

const CHAT = "/v1/chat/completions";
const COMPLETION = "/v1/completions";
const SAMPLING = "temperature top_p min_p top_k seed max_tokens stop";
const PENALTIES = "frequency_penalty presence_penalty repeat_penalty repeat_last_n logit_bias ignore_eos";
const FORMS = "grammar response_format";
const LABELS = "user metadata safety_identifier prompt_cache_key";
const COMMON = `${SAMPLING} ${PENALTIES} ${FORMS} ${LABELS} model stream stream_options logprobs verifiable`;
const KNOWN = {
  [CHAT]: `${COMMON} messages tools tool_choice max_completion_tokens top_logprobs`.split(" "),
  [COMPLETION]: `${COMMON} prompt`.split(" "),
};
/** Fields that may only have the values that change nothing, in canonical form, unless the path knows them. */
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
  modalities: ['["text"]'],
};
const refused = (what) => new Failure("policy", what);

/** RFC 8785: no spaces, names in order of their UTF-16, numbers and strings as JavaScript writes them. */
function canonicalJson(value, depth = 0) {
  if (typeof value === "number" && !(Math.abs(value) <= LIMITS.JSON_NUMBER))
    throw refused("a number past 2^53 - 1");
  if (typeof value === "string" && !isText(value)) throw refused("a lone surrogate");
  if (typeof value === "object" && depth > LIMITS.JSON_DEPTH) throw refused("nested too deeply"); // the body is at depth 1
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
  // By hand: on a long string an expression for strings exhausts the stack.
  const open = [];
  let last = null;
  for (let at = 0; at < text.length; at++) {
    const char = text[at];
    if (char === '"') {
      const start = at;
      while (text[++at] !== '"') if (text[at] === "\\") at++;
      last = [start, at + 1];
    } else if (char === "{" || char === "[") open.push(new Set());
    else if (char === "}" || char === "]") open.pop();
    else if (char === ":") {
      const names = open.at(-1);
      const name = JSON.parse(text.slice(...last));
      if (names.has(name)) throw malformed("JSON object", "each name once");
      names.add(name);
    }
  }
  return value;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const characters = (text) => [...text].length;

/** A client's request as it is sent: its canonical form and what follows from it. */
function readBody(path, body) {
  const canonical = canonicalJson({ body, path });
  if (utf8(canonical).length > LIMITS.REQUEST_BYTES) throw refused("a request of this length");
  for (const [name, value] of Object.entries(body)) {
    if (value === null || KNOWN[path].includes(name)) continue;
    if (!Object.hasOwn(HARMLESS, name)) throw refused(`the unknown parameter ${name}`);
    if (!HARMLESS[name].includes(canonicalJson(value))) throw refused(`${name} with a value that cannot be replayed`);
  }
  const field = (holder, name) => (Object.hasOwn(holder, name) ? holder[name] : null);
  const number = (name) => {
    const value = field(body, name);
    if (value === null) return null;
    const whole = Object.hasOwn(LIMITS.INTEGERS, name);
    const [low, high] = (whole ? LIMITS.INTEGERS : LIMITS.NUMBERS)[name];
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
  const extra = object("verifiable", ["nonce", "session", "turn", "manifest", "commitments"]);
  flag(object("stream_options", ["include_usage", "include_obfuscation"]), "include_usage");
  flag(body, "stream");
  const temperature = number("temperature");
  if (temperature !== null && temperature > 0 && temperature < LIMITS.TEMPERATURE[0])
    throw refused("temperature");
  let maxTokens = number("max_tokens");
  if (path === CHAT) maxTokens = number("max_completion_tokens") ?? maxTokens;
  const model = field(body, "model");
  if (model !== null && (typeof model !== "string" || characters(model) > LIMITS.NAME_CHARACTERS)) throw refused("model");
  const [nonce, session] = [field(extra, "nonce"), field(extra, "session")];
  const digits = typeof nonce === "string" && /^(?:[0-9a-f]{2})*$/.test(nonce);
  const [least, most] = LIMITS.NONCE_BYTES;
  if (nonce !== null && !(digits && nonce.length >= 2 * least && nonce.length <= 2 * most)) throw refused("nonce");
  if (session !== null && session !== "new" && !(typeof session === "string" && /^[0-9a-f]{32}$/.test(session)))
    throw refused("session");
  const [turn, pinned] = [field(extra, "turn"), field(extra, "manifest")];
  if (turn !== null && !(Number.isInteger(turn) && turn >= 0 && turn <= U32)) throw refused("turn");
  if (pinned !== null && !(typeof pinned === "string" && /^[0-9a-f]{64}$/.test(pinned))) throw refused("manifest");
  if (![null, "receipt", "none", "stream"].includes(field(extra, "commitments"))) throw refused("commitments");
  checkLogprobs(path, number, flag, body);
  const messages = path === CHAT ? readMessages(field(body, "messages")) : null;
  const tools = path === CHAT ? readTools(field(body, "tools")) : [];
  const forced = path === CHAT ? readToolChoice(field(body, "tool_choice"), tools) : [];
  const seed = number("seed");
  return {
    path,
    canonical,
    messages,
    tools: field(body, "tool_choice") === "none" ? [] : tools,
    prompt: path === COMPLETION ? readPrompt(field(body, "prompt")) : null,
    temperature,
    topK: number("top_k"),
    topP: number("top_p"),
    minP: number("min_p"),
    maxTokens,
    seed,
    repeatPenalty: number("repeat_penalty"),
    repeatLastN: number("repeat_last_n"),
    frequencyPenalty: number("frequency_penalty") || 0,
    presencePenalty: number("presence_penalty") || 0,
    logitBias: readBiases(field(body, "logit_bias")),
    ignoreEos: flag(body, "ignore_eos"),
    constraint: readConstraint(field(body, "grammar"), field(body, "response_format"), forced),
    stops: readStops(field(body, "stop")),
    nonce: nonce === null ? null : fromHex(nonce),
    nonceSource: nonce !== null ? 0 : seed !== null ? 1 : 2,
    session,
    turn,
    manifest: pinned === null ? null : fromHex(pinned),
  };
}

function checkLogprobs(path, number, flag, body) {
  if (path === COMPLETION) number("logprobs");
  else {
    const top = number("top_logprobs");
    if (!flag(body, "logprobs") && top !== null) throw refused("top_logprobs without logprobs");
  }
}

/** [id, bias] by ascending id; biases of 0 change nothing and are left out. */
function readBiases(value) {
  if (value === null) return [];
  if (!isObject(value) || Object.keys(value).length > LIMITS.BIASES) throw refused("logit_bias");
  const [low, high] = LIMITS.BIAS;
  for (const [id, bias] of Object.entries(value)) {
    const isId = /^(?:0|[1-9][0-9]{0,9})$/.test(id) && Number(id) <= U31;
    if (!isId || typeof bias !== "number" || !(bias >= low && bias <= high)) throw refused("logit_bias");
  }
  return Object.entries(value)
    .filter(([, bias]) => bias !== 0)
    .map(([id, bias]) => [Number(id), bias])
    .sort(([a], [b]) => a - b);
}

/** The canonical form of the grammar or schema that the answer has to match, or no text. */
function readConstraint(grammar, format, forced) {
  const form = format !== null && isObject(format) && canonicalJson(format) === '{"type":"text"}' ? null : format;
  if (forced.length) {
    if (grammar !== null || form !== null) throw refused("tool_choice beside grammar or response_format");
    const none = { additionalProperties: false, properties: {}, type: "object" };
    const tools = canonicalJson({ tools: forced.map(({ name, parameters }) => ({ name, parameters: parameters ?? none })) });
    if (utf8(tools).length > LIMITS.FORM) throw refused("tools");
    return tools;
  }
  if (grammar === null && form === null) return "";
  if (grammar !== null && form !== null) throw refused("grammar and response_format together");
  if (grammar !== null) {
    const good = typeof grammar === "string" && grammar !== "" && characters(grammar) <= LIMITS.FORM;
    if (!good) throw refused("grammar");
    return canonicalJson({ grammar });
  }
  const hasOnly = (object, names) => isObject(object) && Object.keys(object).every((name) => names.includes(name));
  let schema;
  if (isObject(form) && form.type === "json_object" && hasOnly(form, ["type", "schema"])) {
    schema = form.schema ?? { type: "object" };
  } else if (isObject(form) && form.type === "json_schema" && hasOnly(form, ["type", "json_schema"])) {
    const named = form.json_schema;
    if (!hasOnly(named, ["name", "description", "schema", "strict"]) || named.schema == null)
      throw refused("response_format");
    ({ schema } = named);
  } else throw refused("response_format");
  if (!isObject(schema) && typeof schema !== "boolean") throw refused("response_format");
  const canonical = canonicalJson({ schema });
  if (utf8(canonical).length > LIMITS.FORM) throw refused("response_format");
  return canonical;
}

/** The fields of an object that are not null; only these may be there. */
function only(value, names, what) {
  if (!isObject(value)) throw refused(what);
  const held = Object.fromEntries(Object.entries(value).filter(([, item]) => item !== null));
  for (const name of Object.keys(held)) if (!names.split(" ").includes(name)) throw refused(`${name} in ${what}`);
  return held;
}

/** A short text: a tool's name, or the id of a call. */
function readName(value, what) {
  if (typeof value !== "string" || value === "" || characters(value) > LIMITS.NAME_CHARACTERS) throw refused(what);
  return value;
}

const ROLES = {
  system: "role content name",
  developer: "role content name",
  user: "role content name",
  assistant: "role content name tool_calls reasoning_content",
  tool: "role content name tool_call_id",
};

/** A conversation. It comes to the model through its chat template, which is not for here. */
function readMessages(messages) {
  if (!Array.isArray(messages) || !messages.length) throw refused("messages");
  return messages.map((item) => {
    if (!isObject(item) || !Object.hasOwn(ROLES, item.role)) throw refused("a message's role");
    const message = only(item, ROLES[item.role], "a message");
    for (const name of ["name", "reasoning_content", "tool_call_id"])
      if (name in message && typeof message[name] !== "string") throw refused(`a message's ${name}`);
    const calls = message.tool_calls ?? [];
    if (!Array.isArray(calls) || calls.length > LIMITS.TOOLS) throw refused("a message's tool_calls");
    calls.forEach(checkCall);
    return { ...message, content: readContent(message, calls.length > 0 || "reasoning_content" in message) };
  });
}

function readContent({ content }, optional) {
  if (typeof content === "string") return content;
  if (content === undefined && optional) return "";
  const isText = (part) => isObject(part) && part.type === "text" && typeof part.text === "string";
  if (!Array.isArray(content) || !content.every(isText)) throw refused("a message's content");
  return content.map((part) => part.text).join("");
}

function checkCall(item) {
  const call = only(item, "id type function", "a call");
  const { name, arguments: given } = only(call.function, "name arguments", "a call's function");
  if ((call.type ?? "function") !== "function" || typeof given !== "string") throw refused("a call");
  readName(name, "a call's name");
  readName(call.id, "a call's id");
}

/** The functions that a request offers. */
function readTools(tools) {
  if (tools === null) return [];
  if (!Array.isArray(tools) || tools.length > LIMITS.TOOLS) throw refused("tools");
  const functions = tools.map((item) => {
    const tool = only(item, "type function", "a tool");
    if (tool.type !== "function") throw refused("a tool's type");
    const offered = only(tool.function, "name description parameters strict", "a tool's function");
    const { description = "", parameters = {}, strict = false } = offered;
    if (typeof description !== "string" || !isObject(parameters) || typeof strict !== "boolean") throw refused("a tool");
    readName(offered.name, "a tool's name");
    return offered;
  });
  if (new Set(functions.map(({ name }) => name)).size !== functions.length) throw refused("two tools of one name");
  return functions;
}

/** The functions of which the answer has to call one. */
function readToolChoice(choice, functions) {
  if (choice === null || choice === "auto" || choice === "none") return [];
  let chosen = functions;
  if (choice !== "required") {
    const named = only(choice, "type function", "tool_choice");
    if (named.type !== "function") throw refused("tool_choice");
    const wanted = readName(only(named.function, "name", "tool_choice").name, "tool_choice");
    chosen = functions.filter(({ name }) => name === wanted);
  }
  if (!chosen.length) throw refused("tool_choice");
  return chosen;
}

function readPrompt(prompt) {
  const isId = (item) => Number.isInteger(item) && item >= 0 && item <= U31;
  if (typeof prompt === "string" || (Array.isArray(prompt) && prompt.length && prompt.every(isId))) return prompt;
  throw refused("prompt");
}

function readStops(value) {
  const stops = value === null ? [] : typeof value === "string" ? [value] : value;
  const good = (stop) => typeof stop === "string" && stop !== "" && characters(stop) <= LIMITS.STOP_CHARACTERS;
  if (!Array.isArray(stops) || stops.length > LIMITS.STOPS || !stops.every(good)) throw refused("stop");
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
  const penalty = request.repeatPenalty ?? defaults.repeatPenalty;
  const lastN = request.repeatLastN ?? (defaults.repeatLastN || 64);
  const repeats = penalty !== 1 && lastN !== 0;
  return {
    temperature: request.temperature ?? defaults.temperature,
    topK: topK < 1 ? k : Math.min(topK, k),
    topP: request.topP ?? defaults.topP,
    minP: request.minP ?? defaults.minP,
    maxTokens: Math.min(wanted, room, LIMITS.ANSWER_TOKENS),
    repeatPenalty: repeats ? penalty : 1,
    repeatLastN: !repeats ? 0 : lastN > 0 ? lastN : U31,
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
