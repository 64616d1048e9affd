// Sampling that can be replayed: filters, Gumbel-max noise from the turn's key, and a slack for other machines'
// logarithms.

const SLACK = 1e-9;

/** How far apart two machines may be about a computed value: more where one step of rounding is more. */
const slackOf = (value) => Math.max(SLACK, 2 ** -50 * Math.abs(value));

function samplingKey(source, nonce, promptDigest) {
  const tag = utf8("verifiable-inference/v2/sampling-key\n");
  return sha256(concat(tag, new Uint8Array([source]), bigEndian(nonce.length, 4), nonce, promptDigest));
}

/** The noise of token ids at a position of the sequence. */
function gumbel(key, position, ids) {
  const message = concat(key, bigEndian(position, 4), new Uint8Array(4));
  const tail = new DataView(message.buffer, key.length + 4);
  return ids.map((id) => {
    tail.setUint32(0, id);
    const view = new DataView(sha256(message).buffer);
    const word = view.getUint32(0) * 2 ** 20 + (view.getUint32(4) >>> 12); // the first 52 bits
    return -Math.log(-Math.log((word + 0.5) * 2 ** -52));
  });
}

/** How many of the leading entries top_k, top_p and min_p leave; `side` moves the bounds by their slack. */
function survivors(logits, { topK, topP, minP }, side = 0) {
  const kept = logits.slice(0, topK);
  let count = kept.length;
  if (topP < 1) {
    const weights = kept.map((logit) => Math.exp(logit - kept[0]));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    let sum = 0;
    const reached = weights.findIndex((weight) => (sum += weight) / total >= topP - side * SLACK);
    if (reached >= 0) count = reached + 1;
  }
  const floor = kept[0] + Math.log(minP) - side * slackOf(kept[0]);
  if (minP > 0) count = Math.min(count, kept.filter((logit) => logit >= floor).length);
  return Math.max(count, 1);
}

/** The ids that an honest provider may have drawn: one, but for results that two machines may round to two sides. */
function acceptable({ ids, logits }, params, key, position, noise = null) {
  if (params.temperature === 0) return new Set([ids[0]]);
  const found = new Set();
  const drawn = noise ?? gumbel(key, position, ids.slice(0, params.topK));
  for (const side of [-1, 0, 1]) {
    const count = survivors(logits, params, side);
    const scores = logits.slice(0, count).map((logit, i) => logit / params.temperature + drawn[i]);
    if (!scores.every(Number.isFinite)) throw malformed("the scores of a draw", "finite numbers");
    const best = Math.max(...scores);
    scores.forEach((score, i) => score >= best - slackOf(best) && found.add(ids[i]));
  }
  return found;
}

/** What a draw sees of a record: all but the ids that the manifest bars from every answer. */
function withoutSuppressed(record, suppressed) {
  if (!suppressed.length) return record;
  const barred = new Set(suppressed);
  const kept = record.ids.map((id) => !barred.has(id));
  const seen = (values) => values.filter((_, i) => kept[i]);
  return { ...record, ids: seen(record.ids), logits: seen(record.logits) };
}

/** Whether processors changed logits before the draw, and whether undoing that needs the model's vocabulary. */
function processorsOf({ repeatPenalty, frequencyPenalty, presencePenalty, logitBias, ignoreEos, constraint }) {
  const vocabulary = ignoreEos || constraint !== "";
  const penalised = repeatPenalty !== 1 || frequencyPenalty !== 0 || presencePenalty !== 0 || logitBias.length > 0;
  return { active: penalised || vocabulary, vocabulary };
}

/** What each draw of a whole turn saw of its record: processed logits, in their order. */
function processed(records, params) {
  const bias = new Map(params.logitBias);
  const counts = new Map();
  const answer = [];
  return records.map(({ ids, logits, token, position }) => {
    const recent = new Set(params.repeatLastN ? answer.slice(-params.repeatLastN) : []);
    const pairs = ids.map((id, i) => {
      let value = logits[i] + (bias.get(id) ?? 0);
      if (recent.has(id)) value = value > 0 ? value / params.repeatPenalty : value * params.repeatPenalty;
      const count = counts.get(id) ?? 0;
      if (count) value -= count * params.frequencyPenalty + params.presencePenalty;
      return [id, value];
    });
    pairs.sort(([a, x], [b, y]) => y - x || a - b);
    counts.set(token, (counts.get(token) ?? 0) + 1);
    answer.push(token);
    return { ids: pairs.map(([id]) => id), logits: pairs.map(([, value]) => value), token, position };
  });
}

/**
 * Replay records of a turn, `whole` when they are all there are; throws what a departure means. Returns how many were
 * replayed: none where processors need the tokens before, which are not all shown, or the model's vocabulary.
 */
function replayTurn(turn, shown, whole) {
  const { active, vocabulary } = processorsOf(turn.params);
  if (active && (vocabulary || !whole)) return 0;
  const records = active ? processed(shown, turn.params) : shown;
  const key = samplingKey(turn.nonceSource, turn.nonce, turn.prompt);
  const noise = records.map((record) => gumbel(key, record.position, record.ids));
  const departing = (params) =>
    records.filter((record, i) => !acceptable(record, params, key, record.position, noise[i]).has(record.token));
  const wrong = departing(turn.params);
  if (!wrong.length) return records.length;
  const first = wrong[0];
  const allowed = [...acceptable(first, turn.params, key, first.position)].join(" or ");
  const where = `token ${first.position - turn.promptCount}`;
  if (!whole || wrong.length === 1) {
    const what = `${where} does not follow from its record and the turn's key`;
    throw new Failure("token-not-sampled", what, `id ${allowed}`, `id ${first.token}`);
  }
  const many = `${wrong.length} of ${records.length} tokens`;
  const temperature = [explainingTemperature(turn, records, noise), 0].find(
    (each) => each !== null && !departing({ ...turn.params, temperature: each }).length,
  );
  if (temperature !== undefined) {
    const what = `${many} were drawn at another temperature than the request has`;
    const found = `about ${temperature.toPrecision(3)}`;
    throw new Failure("temperature-differs", what, `temperature ${turn.params.temperature}`, found);
  }
  const what = `${many} do not follow from their records`;
  throw new Failure("text-not-sampled", what, `id ${allowed} at ${where}`, `id ${first.token}`);
}

/** A temperature over 0 at which each token wins its draw, or null. Each bounds 1/T: (l_x - l_i)/T >= G_i - G_x for all i. */
function explainingTemperature(turn, records, noise) {
  const [least, largest] = LIMITS.TEMPERATURE;
  let [low, high] = [1 / largest, 1 / least];
  for (const [n, { ids, logits, token }] of records.entries()) {
    const count = survivors(logits, turn.params);
    const x = ids.indexOf(token);
    if (x < 0 || x >= count) return null;
    for (let i = 0; i < count; i++) {
      const lead = logits[x] - logits[i];
      const lag = noise[n][i] - noise[n][x] - SLACK;
      if (lead > 0) low = Math.max(low, lag / lead);
      else if (lead < 0) high = Math.min(high, lag / lead);
      else if (lag > 0) return null;
    }
  }
  if (low > high) return null;
  return (1 / low + 1 / high) / 2;
}
