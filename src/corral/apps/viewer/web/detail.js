// The details of one call: its text, its parts, findings, violations, enforcement, cost and output.

class Detail {
  constructor(meta, store, load, picks) {
    this.meta = meta;
    this.store = store;
    this.load = load;
    this.picks = picks;
    this.box = byId("detail");
    this.call = null;
    this.more = null;
  }

  /** Show a call, and its details as soon as they are loaded. */
  async show(call) {
    const isSame = this.call && this.call.key === call.key;
    this.call = call;
    if (!isSame) { this.more = null; this.box.scrollTop = 0; }
    this.box.hidden = false;
    this.draw();
    const more = await this.load(call.key);
    if (this.call && this.call.key === call.key) { this.more = more || {}; this.draw(); }
  }

  hide() { this.call = null; this.box.hidden = true; }

  draw() {
    const { call } = this;
    const parts = this.more && this.more.parts;
    const findings = joined(call.findings || [], parts && parts.findings || []);
    const sections = [
      this.command(call, findings), transactionSection(call, this.store, this.picks), this.parts(call, parts, findings), this.findings(call, findings), this.violations(call), this.grants(call), this.connections(call), this.chain(call), this.spans(),
      this.costs(call), this.enforcement(call), this.output(call), this.about(call), this.raw(call),
    ];
    const top = this.box.scrollTop;
    this.box.replaceChildren(this.cap(call), ...sections.filter(Boolean));
    this.box.scrollTop = top;
  }

  cap(call) {
    return el("div", { class: "cap" },
      call.settled ? el("span", { class: "badge soft" }, sign(became(call.settled)), STATES[became(call.settled)]) : call.outcome === "note" ? el("span", { class: "badge soft" }, sign("note"), plain(call.event || "note", 40)) : el("span", { class: "badge " + call.decision }, sign(call.decision), call.decision),
      call.outcome === "note" ? null : el("span", { class: "badge soft" }, sign(call.outcome), ending(call)),
      el("span", { class: "grow" }, call.at === undefined ? "" : day(call.at) + " " + clock(call.at)),
      el("button", { class: "icon", type: "button", "aria-label": "Close", title: "Close (Esc)", onclick: this.picks.close }, "×"));
  }

  command(call, findings) {
    if (call.shell === undefined && !words(call).length) return null;
    const text = call.shell !== undefined ? marked(call.shell, findings.filter((finding) => finding.argument === undefined || finding.argument === null)) : argv(call, findings);
    const kind = call.files ? "Files" : call.shell !== undefined ? "Shell text" : "Command";
    return section(kind, "", el("pre", { class: "foreign", id: "command" }, text),
      call.cut ? el("p", { class: "note" }, `The log keeps the first ${count(Array.from(commandText(call)).length)} of ${count(call.cut)} characters.`) : null);
  }

  parts(call, parts, findings) {
    if (call.shell === undefined && !call.argv) return null;
    if (!parts) return this.more ? null : section("Parts", "", el("p", { class: "note" }, "Reading…"));
    if (parts.said) return section("Parts", "", el("p", { class: "note" }, foreign(parts.said)));
    const rows = parts.steps.map((step, n) => this.step(call, step, findings, n ? parts.steps[n - 1] : null));
    const where = `judged today with the profile ${parts.profile}`;
    return section("Parts", where, rows.length ? el("ul", { class: "tree", id: "parts" }, rows) : el("p", { class: "note" }, "The guard found no command in this call."),
      parts.more ? el("p", { class: "note" }, `and ${count(parts.more)} more`) : null,
      parts.decision === call.decision ? null : el("p", { class: "note" }, "The verdict today is ", sign(parts.decision), " ", parts.decision, ": the policy, the rules or the project's files have changed."));
  }

  step(call, step, findings, above) {
    const chars = call.shell === undefined ? null : Array.from(call.shell).slice(step.start, step.start + step.length).join("");
    const text = chars && step.name && chars.includes(step.name) ? chars : step.text || step.name;
    const worst = Math.max(0, ...step.effects.map((effect) => DECISIONS.indexOf(effect.decision)));
    const item = el("li", { class: worst === 2 ? "bad" : worst === 1 ? "bad asks" : "" },
      el("div", { class: "what foreign" }, foreign(text)),
      step.effects.length ? el("ul", { class: "effects" }, step.effects.map((effect) => el("li", {}, sign(effect.decision), el("span", { class: "unseen" }, effect.decision + " "),
        el("span", { class: "key" }, effect.key), effect.text ? el("span", { class: "mono foreign" }, foreign(effect.text, { oneLine: true })) : null))) : null);
    item.style.setProperty("--depth", Math.min(step.depth, 8));
    return item;
  }

  findings(call, findings) {
    const said = call.error || (!findings.length && call.reason);
    if (!findings.length && !said) return null;
    const cards = findings.map((finding) => el("article", { class: `card ${finding.decision}-card` },
      el("header", {}, sign(finding.decision), el("b", {}, finding.decision), el("button", { class: "link mono foreign", type: "button", onclick: () => this.picks.rule(finding.rule) }, plain(finding.rule || "", 200)),
        finding.axis ? el("span", { class: "pill" }, finding.axis + " axis") : null),
      finding.text ? el("p", { class: "mono foreign" }, foreign(finding.text, { oneLine: true })) : null,
      finding.reason ? el("p", { class: "foreign" }, foreign(finding.reason)) : null,
      finding.instead ? el("p", { class: "instead foreign" }, foreign(finding.instead)) : null));
    if (said) cards.unshift(el("article", { class: "card deny-card" }, el("p", { class: "foreign" }, foreign(said))));
    return section(findings.length ? "Findings" : "Reason", "", cards);
  }

  violations(call) {
    const found = call.result && call.result.violations;
    if (!found) return null;
    return section("Violations", "stopped by the kernel while the call ran", found.map((violation) => el("article", { class: "card deny-card" },
      el("header", {}, sign("stopped"), el("b", { class: "foreign" }, plain(violation.kind || "", 100)), violation.inferred ? el("span", { class: "pill" }, "inferred") : null,
        violation.grant ? el("span", { class: "pill mono foreign" }, "grant: " + plain(violation.grant, 200)) : null),
      violation.target ? el("p", { class: "mono foreign" }, foreign(violation.target, { oneLine: true })) : null,
      violation.detail ? el("p", { class: "foreign" }, foreign(violation.detail)) : null,
      violation.instead ? el("p", { class: "instead foreign" }, foreign(violation.instead)) : null)));
  }

  grants(call) {
    const found = call.result && call.result.grants;
    if (!found || !found.length) return null;
    return section("Openings", "for this call alone", el("ol", { class: "chain", id: "grants" }, found.map((one) => el("li", {}, sign("note"),
      el("b", { class: "mono foreign" }, plain(one.target || "", 200)), " ", plain(one.kind || "", 40), one.by ? ` · ${plain(one.by, 100)}` : "",
      one.source ? el("div", { class: "sub foreign" }, foreign(one.source)) : null))));
  }

  connections(call) {
    const found = call.result && call.result.connections;
    if (!found) return null;
    const signs = { allowed: "allow", refused: "deny", failed: "failed" };
    return section("Connections", "requests to the sandbox's proxy", el("ol", { class: "chain", id: "connections" }, found.map((one) => el("li", {}, sign(entry(signs, one.outcome) || "note"),
      el("b", { class: "mono foreign" }, plain(one.target || "", 200)), " ", plain(one.outcome || "", 40), one.count > 1 ? ` · ${count(one.count)} times` : "",
      [one.address && `at ${one.address}`, one.detail, one.grant && (one.outcome === "refused" ? `to allow it, the user sets ${setting(one.grant)}` : `granted by ${one.grant}`)].filter(Boolean).map((said) => el("div", { class: "sub foreign" }, foreign(said)))))));
  }

  chain(call) {
    const steps = call.chain || [];
    if (steps.length < 2 && !steps.some((step) => step.event === "gate")) return null;
    return section("Chain", "in the order of the checks", el("ol", { class: "chain" }, steps.map((step) => el("li", {}, sign(step.decision),
      el("b", {}, step.event === "gate" ? "gates" : step.host ? "hook · " + plain(step.host, 60) : plain(step.event || "", 60)), " ", step.decision, step.at ? " · " + clock(step.at) : "",
      step.passed ? el("div", { class: "sub foreign" }, "passed " + (step.passed.map((name) => plain(name, 80)).join(" → ") || "none"), step.gate ? `; stopped at ${plain(step.gate, 80)}` : "") : null,
      step.rule ? el("div", { class: "sub mono foreign" }, plain(step.rule, 200)) : null,
      step.reason ? el("div", { class: "sub foreign" }, foreign(step.reason)) : null,
      step.instead ? el("div", { class: "sub foreign" }, "Instead: ", foreign(step.instead)) : null))));
  }

  spans() {
    const spans = this.more && this.more.spans;
    if (!spans || !spans.length) return null;
    const from = Math.min(...spans.map((span) => span.start)), to = Math.max(...spans.map((span) => span.end), from + 0.001);
    const x = (at) => (100 * (at - from)) / (to - from);
    const depth = (span, most = 8) => { const above = spans.find((other) => other.spanId && other.spanId === span.parentSpanId); return above && most ? 1 + depth(above, most - 1) : 0; };
    return section("Spans", milliseconds(to - from), el("table", { class: "spans" }, el("tbody", {}, spans.map((span) => el("tr", { title: Object.entries(span.attributes).slice(0, 20).map(([name, value]) => plain(name, 60) + " = " + plain(value, 80)).join("\n") },
      el("td", { class: "mono foreign" }, "\u00a0\u00a0".repeat(depth(span)) + plain(span.name, 80)),
      el("td", {}, svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "fill-accent", x: x(span.start), y: 1, width: Math.max(0.6, x(span.end) - x(span.start)), height: 8 }))),
      el("td", {}, milliseconds(span.end - span.start)))))));
  }

  costs(call) {
    const { result } = call;
    if (!result || call.outcome === "refused") return null;
    const usage = result.usage || {};
    const facts = [["Took", milliseconds(result.duration_ms)], ["CPU", cpu(call) === undefined ? "" : milliseconds(cpu(call) * 1000)], ["Peak memory", bytes(usage.peak_memory_bytes)],
      ["stdout", bytes(result.stdout_bytes)], ["stderr", bytes(result.stderr_bytes)], ["Read from disk", bytes(usage.read_bytes)], ["Written to disk", bytes(usage.written_bytes)],
      ["Killed at the end", result.killed ? plural(result.killed, "process").replace("processs", "processes") : ""]];
    return section("Cost", "", el("dl", { class: "facts" }, facts.filter((fact) => fact[1]).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "big" }, value)))));
  }

  enforcement(call) {
    const { result } = call;
    if (!result || !result.enforcement || call.outcome === "refused") return null;
    const missing = new Set(result.missing_layers || []);
    const held = result.enforcement !== "none";
    const layers = this.meta.layers.map((layer) => {
      const lacks = missing.has(layer.name) || (!held && !missing.size);
      const asked = layer.always || (result.network && result.network !== "on");
      const unsure = result.network ? "not asked for" : "held where it was asked for";
      const [kind, shape, said] = lacks ? ["missing", "deny", "missing"] : asked ? ["", "allow", "held"] : ["unsure", "note", unsure];
      return el("li", { class: kind, title: `${said}: ${layer.keeps}` }, sign(shape), el("span", { class: "unseen" }, said + ": "), layer.name);
    });
    return section("Enforcement", "", el("p", { class: "note first" }, sign(result.enforcement === "full" ? "allow" : result.enforcement === "partial" ? "ask" : "deny"), " " + result.enforcement + (result.backend ? `, by ${plain(result.backend, 60)}` : "")),
      call.event === "eval" ? null : el("ul", { class: "layers" }, layers));
  }

  output(call) {
    if (!call.result || call.outcome === "refused") return null;
    const output = this.more && this.more.output;
    const { result } = call;
    const told = `${bytes(result.stdout_bytes || 0)} on stdout and ${bytes(result.stderr_bytes || 0)} on stderr${result.truncated ? "; the output was truncated" : ""}`;
    if (!this.more) return section("Output", "", el("p", { class: "note" }, "Reading…"));
    if (!output || output.dropped) {
      const why = output ? "It was dropped to bound memory." : call.event === "eval" ? "An eval keeps output only if a call was not as expected." : this.meta.kind === "log" ? "The log never keeps the output of commands." : "The output is unknown.";
      return section("Output", "not kept", el("p", { class: "note" }, call.event === "eval" ? why : `${why} The command printed ${told}.`));
    }
    const streams = ["stdout", "stderr"].filter((name) => output[name]);
    return section("Output", result.truncated ? "truncated: " + told : "",
      streams.map((name) => el("div", {}, el("p", { class: "note" }, name), el("pre", { class: "foreign output", tabindex: 0, "aria-label": name }, printed(output[name], result.truncated)))),
      streams.length ? null : el("p", { class: "note" }, "Nothing was printed."),
      output.path ? el("p", { class: "note mono foreign" }, "All of it: ", plain(output.path)) : null);
  }

  about(call) {
    const facts = [["Project", call.root], ["Directory", call.cwd], ["Profile", call.profile], ["Asked by", [call.event, call.host].filter(Boolean).join(", ")], ["Task", call.task], ["Tool", call.tool], ["Transaction", call.transaction], ["Id", call.id], ["Line of the log", call.seq && String(call.seq)]];
    return section("About", "", el("dl", { class: "facts wide" }, facts.filter((fact) => fact[1]).map(([name, value]) => [el("dt", {}, name), el("dd", { class: "mono foreign" }, foreign(value, { oneLine: true }))])));
  }

  raw(call) {
    return el("section", {}, el("details", {}, el("summary", {}, "JSON"), el("pre", { class: "foreign" }, foreign(JSON.stringify(call, null, 2)))));
  }
}

// A refusal because of a limit needs a higher limit, any other refusal needs a granted destination.
const setting = (grant) => (grant.startsWith("limits.") ? grant : `containment.network = ["${grant}"]`);

function section(title, small, ...children) {
  return el("section", {}, el("h2", {}, title, small ? [" ", el("small", {}, small)] : null), ...children);
}

/** Return recorded findings, completed with the position and the advice of today's verdict. */
function joined(told, today) {
  const rest = [...today];
  return [...told].sort((a, b) => DECISIONS.indexOf(b.decision) - DECISIONS.indexOf(a.decision)).map((finding) => {
    const at = rest.findIndex((other) => other.rule === finding.rule);
    const same = at < 0 ? {} : rest.splice(at, 1)[0];
    return { ...same, ...finding };
  });
}

/** Return text with marks at the findings; the strictest wins. Positions count code points. */
function marked(text, findings) {
  const chars = Array.from(text), level = new Uint8Array(chars.length);
  for (const finding of findings) {
    const size = DECISIONS.indexOf(finding.decision);
    for (let i = finding.start || 0; i < Math.min(chars.length, (finding.start || 0) + (finding.length || 0)); i += 1) level[i] = Math.max(level[i], size);
  }
  const nodes = [];
  for (let i = 0; i < chars.length;) {
    let end = i;
    while (end < chars.length && level[end] === level[i]) end += 1;
    const part = foreign(chars.slice(i, end).join(""));
    nodes.push(level[i] ? el("mark", { class: DECISIONS[level[i]] }, part) : part);
    i = end;
  }
  return nodes;
}

function argv(call, findings) {
  return words(call).map((word, n) => {
    const inside = marked(word, findings.filter((finding) => finding.argument === n));
    const bare = BARE.test(word) || call.files;
    return [n ? (call.files ? "\n" : " ") : "", bare ? inside : [el("span", { class: "word" }, "'"), inside, el("span", { class: "word" }, "'")]];
  });
}

// The line that corral inserts where it truncated the output.
const CUT = /^.*\[(?:corral: )?[^\]\n]*truncated[^\]\n]*\].*$/gm;
function printed(text, isCut) {
  if (!isCut) return foreign(text);
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(CUT)) {
    nodes.push(foreign(text.slice(from, match.index)), el("span", { class: "cutline" }, foreign(match[0])));
    from = match.index + match[0].length;
  }
  return [nodes, foreign(text.slice(from))];
}
