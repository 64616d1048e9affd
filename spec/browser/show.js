// Says in words what came out. Everything from a file goes in as text, never as markup.

const byId = (id) => document.getElementById(id);

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

function verdictOf({ failure, replayed, session, fraud, accusing, ignored }) {
  if (!failure && fraud) {
    const said = `Signed by ${fraud.signedBy}: ${fraud.what}.`;
    const heading = element("h2", "", "✗ It proves fraud");
    const code = definitions([["Reason code", element("code", "", fraud.code)]]);
    const means = element("p", "", MEANING[fraud.code] ?? "");
    return element("section", "verdict failed", heading, element("p", "", foreign(said)), means, code);
  }
  if (!failure) {
    const tokens = replayed ? ` ${replayed} tokens follow from their records and the key of the draw.` : "";
    const said = `Signed by ${signedBy(session.key, session.manifest, session.chain)}, and nothing was changed since.${tokens}`;
    return element("section", "verdict holds", element("h2", "", "✓ It holds"), element("p", "", foreign(said)));
  }
  const open = accusing || INCONCLUSIVE.includes(failure.code); // a file that proves nothing accuses nobody
  const unread = failure.code === "malformed" ? "– A file of yours can’t be read" : "– Not decided";
  const box = element(
    "section",
    open ? "verdict open" : "verdict failed",
    element("h2", "", open ? unread : "✗ It does not hold"),
  );
  const message = failure.message[0].toUpperCase() + failure.message.slice(1);
  box.append(element("p", "", foreign(message), "."), element("p", "", MEANING[failure.code] ?? ""));
  const facts = [["Reason code", element("code", "", failure.code)]];
  if (failure.expected != null) facts.push(["Expected", foreign(failure.expected)]);
  if (failure.found != null) facts.push(["Found", foreign(failure.found)]);
  if (failure.code === "untrusted-key")
    for (const what of ignored) facts.push(["Left out of the keys file", foreign(what)]);
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
  const file = [...manifest.files, ...manifest.adapters].map(({ name, sha256: digest, size, scale }) => {
    const added = scale === undefined ? "" : `adapter × ${scale}: `;
    return element("div", "", added, foreign(name), ` (${size.toLocaleString("en")} bytes) sha256 `, hash(digest));
  });
  const facts = element("section", "", element("h2", "", "What was signed"));
  facts.append(
    definitions([
      ["Signing key", element("span", "", foreign(key.label), " ", hash(key.kid))],
      ["Provider, by its own word", foreign(manifest.provider)],
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
      ...statedOf(manifest),
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

/** What a manifest says only where it is not left to llama.cpp and the model. */
function statedOf({ rope, device, gpuLayers, suppressed }) {
  const rows = [];
  const settings = Object.entries(rope).map(([name, value]) => `${name} ${value}`);
  if (settings.length) rows.push(["RoPE", settings.join(", ")]);
  if (device !== null || gpuLayers) rows.push(["Device", foreign(device ?? "chosen by llama.cpp")]);
  if (suppressed.length) rows.push(["Suppressed", `${suppressed.length} tokens, by the model’s own list`]);
  return rows;
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
  const told = (title, text) => section.append(element("p", "detail", foreign(title)), element("blockquote", "", foreign(text)));
  if (request?.tools?.length) told("tools", canonicalJson(request.tools));
  for (const { role, content, reasoning_content: reasoning, tool_calls: calls } of request?.messages ?? []) {
    if (reasoning) told(`${role}, reasoning`, reasoning);
    if (content || !calls) told(role, content);
    if (calls?.length) told(`${role}, calls`, canonicalJson(calls));
  }
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
    const notes = notShown(found).map(({ id, what }) => {
      const item = element("li", "", what);
      item.dataset.caveat = id;
      return item;
    });
    parts.push(factsOf(found), element("h2", "", "What this does not show"), element("ul", "", ...notes));
    if (found.opens)
      parts.push(
        element(
          "p",
          "hint",
          "This receipt also opens the session’s evidence: whoever gets the file can read the conversation, later turns " +
            "too. “verifiable verify --without-capability” writes one for handing on.",
        ),
      );
  }
  byId("result").replaceChildren(...parts);
}
