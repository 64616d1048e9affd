// The manifest: who serves which model, with what settings. What is not always said stands in a map behind the rest.

const SCALINGS = ["none", "linear", "yarn", "longrope"];

/** RoPE settings by their keys: the name, and how each is read. */
const ROPE = {
  2: ["freq_base", (value, what) => floatOf(value, what, ...LIMITS.ROPE.freq_base)],
  3: ["freq_scale", (value, what) => floatOf(value, what, ...LIMITS.ROPE.freq_scale)],
  4: [
    "scaling",
    (value, what) => {
      if (!SCALINGS.includes(textOf(value, what, LIMITS.SCALING_BYTES))) throw malformed(what, SCALINGS.join(", "), value);
      return value;
    },
  ],
  5: ["yarn_ext_factor", (value, what) => floatOf(value, what, ...LIMITS.ROPE.yarn_ext_factor)],
  6: ["yarn_attn_factor", (value, what) => floatOf(value, what, ...LIMITS.ROPE.yarn_attn_factor)],
  7: ["yarn_beta_fast", (value, what) => floatOf(value, what, ...LIMITS.ROPE.yarn_beta_fast)],
  8: ["yarn_beta_slow", (value, what) => floatOf(value, what, ...LIMITS.ROPE.yarn_beta_slow)],
  9: ["yarn_orig_ctx", (value, what) => positive(uintOf(value, what, U31), what)],
};

/** An array of `count` items, and what a map after them says by its keys, of 1 to `last`. */
function withMore(value, count, last, what) {
  const items = arrayOf(value, null, what);
  if (items.length !== count && items.length !== count + 1)
    throw malformed(what, `${count} items, or a map after them`, items.length);
  const more = new Map();
  if (items.length === count) return [items, more];
  const map = items[count];
  if (!(map instanceof CborMap) || !map.pairs.length) throw malformed(what, "a map that is not empty");
  for (const [key, said] of map.pairs) {
    if (typeof key !== "bigint" || key < 1n || key > BigInt(last)) throw malformed(what, `keys 1 to ${last}`);
    more.set(Number(key), said);
  }
  return [items, more];
}

function fileOf([name, digest, size]) {
  return {
    name: textOf(name, "model file name", LIMITS.FILE_NAME_BYTES),
    sha256: bytesOf(digest, "model file hash", 32),
    size: uintOf(size, "model file size"),
  };
}

function adaptersOf(value) {
  const found = arrayOf(value, null, "adapters").map((entry) => {
    const [scale, ...file] = arrayOf(entry, 4, "an adapter").toReversed();
    const [least, most] = LIMITS.SCALE;
    const factor = floatOf(scale, "adapter scale", -most, most);
    if (Math.abs(factor) < least) throw malformed("adapter scale", `a magnitude from ${least} to ${most}`, factor);
    return { ...fileOf(file.toReversed()), scale: factor };
  });
  if (found.length < 1 || found.length > LIMITS.ADAPTERS)
    throw malformed("adapters", `1 to ${LIMITS.ADAPTERS}`, found.length);
  return found;
}

/** Ids that the model's own list bars from every answer. */
function suppressedOf(value, vocabulary) {
  const data = bytesOf(value, "suppressed ids", null, 4 * LIMITS.SUPPRESSED);
  const view = new DataView(data.buffer, data.byteOffset);
  const ids = Array.from({ length: Math.floor(data.length / 4) }, (_, i) => view.getUint32(4 * i, true));
  const ascending = ids.every((id, i) => i === 0 || id > ids[i - 1]);
  if (!ids.length || data.length % 4 || !ascending || ids.at(-1) >= vocabulary || ids.length >= vocabulary)
    throw malformed("suppressed ids", "ascending ids of 4 bytes each, not the whole vocabulary");
  return ids;
}

function parseModel(value) {
  const [items, more] = withMore(value, 7, 2, "manifest model");
  const [files, architecture, fileType, parameters, vocabulary, tokenizer, template] = items;
  const model = {
    files: arrayOf(files, null, "model files").map((file) => fileOf(arrayOf(file, 3, "model file"))),
    architecture: textOf(architecture, "architecture", LIMITS.ARCHITECTURE_BYTES),
    fileType: uintOf(fileType, "file type", U31),
    parameters: uintOf(parameters, "parameters"),
    vocabulary: uintOf(vocabulary, "vocabulary", U31),
    tokenizer: bytesOf(tokenizer, "tokenizer digest", 32),
    template: bytesOf(template, "template digest", 32),
    adapters: more.has(1) ? adaptersOf(more.get(1)) : [],
  };
  if (model.files.length < 1 || model.files.length > LIMITS.FILES)
    throw malformed("model files", `1 to ${LIMITS.FILES}`);
  return { ...model, suppressed: more.has(2) ? suppressedOf(more.get(2), model.vocabulary) : [] };
}

/** The files of machine code that compute, by their names. */
function librariesOf(value) {
  const found = arrayOf(value, null, "libraries").map((entry) => {
    const [name, digest] = arrayOf(entry, 2, "a library");
    if (!/^[A-Za-z0-9_.+-]+$/.test(textOf(name, "library name", LIMITS.LIBRARY_BYTES)))
      throw malformed("library name", "letters, digits, and _ . + -", name);
    return { name, sha256: bytesOf(digest, "library hash", 32) };
  });
  const ascending = found.every(({ name }, i) => i === 0 || name > found[i - 1].name);
  if (!found.length || found.length > LIMITS.LIBRARIES || !ascending)
    throw malformed("libraries", `1 to ${LIMITS.LIBRARIES}, by ascending names`, found.length);
  return found;
}

function parseRuntime(value) {
  const [items, more] = withMore(value, 16, 12, "manifest runtime");
  const [build, bindings, system, context, batch, microBatch, typeK, typeV] = items;
  const [flash, unified, repack, tiled, window, layers, fingerprint, invariant] = items.slice(8);
  const device = more.has(1) ? textOf(more.get(1), "device", LIMITS.DEVICE_BYTES) : null;
  if (device === "") throw malformed("device", "no key where there is no name");
  if (more.has(10) && more.get(10) !== true) throw malformed("rows in pairs", "true, or no key");
  const compiler = more.has(12) ? textOf(more.get(12), "compiler", LIMITS.COMPILER_BYTES) : null;
  if (compiler === "") throw malformed("compiler", "no key where it is not known");
  const rope = {};
  for (const [key, [name, read]] of Object.entries(ROPE))
    if (more.has(Number(key))) rope[name] = read(more.get(Number(key)), `rope ${name}`);
  return {
    build: textOf(build, "build", LIMITS.BUILD_BYTES),
    bindings: textOf(bindings, "bindings", LIMITS.BUILD_BYTES),
    system: textOf(system, "system", LIMITS.SYSTEM_BYTES),
    context: uintOf(context, "n_ctx", U31),
    batch: [uintOf(batch, "n_batch", U31), uintOf(microBatch, "n_ubatch", U31)],
    cacheTypes: [textOf(typeK, "type_k", LIMITS.CACHE_TYPE_BYTES), textOf(typeV, "type_v", LIMITS.CACHE_TYPE_BYTES)],
    switches: [flash, unified, repack, tiled, window].map((value) => booleanOf(value, "a runtime setting")),
    gpuLayers: uintOf(layers, "n_gpu_layers", U31),
    fingerprint: bytesOf(fingerprint, "fingerprint", 32),
    invariant: booleanOf(invariant, "invariant"),
    device,
    rope,
    pairs: more.has(10),
    libraries: more.has(11) ? librariesOf(more.get(11)) : [],
    compiler,
  };
}

/** The defaults are parameters without max_tokens, and of the processors have the repeat penalty only. */
function parseDefaults(value) {
  if (!(value instanceof CborMap)) throw malformed("sampling defaults", "a map");
  if (value.pairs.slice(4).some(([key]) => key !== 6n)) throw malformed("sampling defaults", "keys 1 to 4, and 6");
  const pairs = [...value.pairs.slice(0, 4), [5n, 1n], ...value.pairs.slice(4)];
  return parseParams(new CborMap(pairs), "sampling defaults");
}

function parseManifest(payload) {
  const f = versionedOf(decodeCbor(payload), 12, "manifest");
  const forms = uintOf(f[11], "request forms");
  if (forms > 2n) throw new Failure("newer-version", `requests of forms ${forms}; this reads 2`, "request forms 2", `${forms}`);
  if (forms < 2n) throw malformed("request forms", "2", forms);
  const [k, valueKind] = arrayOf(f[6], 2, "manifest commitment");
  const [sampler, defaults] = arrayOf(f[7], 2, "manifest sampler");
  version(sampler, "sampler version");
  const found = {
    digest: sha256(payload),
    provider: textOf(f[1], "manifest provider", LIMITS.PROVIDER_BYTES),
    validFrom: uintOf(f[2], "manifest valid-from"),
    validTo: uintOf(f[3], "manifest valid-to"),
    ...parseModel(f[4]),
    ...parseRuntime(f[5]),
    k: positive(uintOf(k, "k", LIMITS.ENTRIES), "k"),
    valueKind: uintOf(valueKind, "value kind", 1),
    defaults: parseDefaults(defaults),
    drafters: arrayOf(f[8], null, "drafters").map((name) => textOf(name, "drafter", LIMITS.DRAFTER_BYTES)),
    sessionKeys: arrayOf(f[9], null, "session keys").map((key) => PublicKey.parse(textOf(key, "session key", LIMITS.KEY_BYTES))),
    log: f[10] === null ? null : PublicKey.parse(textOf(f[10], "log key", LIMITS.KEY_BYTES)),
  };
  if (found.drafters.length > LIMITS.DRAFTERS) throw malformed("drafters", `at most ${LIMITS.DRAFTERS}`);
  if (found.sessionKeys.length < 1 || found.sessionKeys.length > LIMITS.SESSION_KEYS)
    throw malformed("session keys", `1 to ${LIMITS.SESSION_KEYS}`);
  if (found.validFrom > found.validTo) throw malformed("manifest validity", "valid-from not after valid-to");
  return found;
}
