// The calls, columns for fast lookups, and the filters. Does not touch the document.

const OUTCOMES = ["ok", "failed", "signal", "timeout", "refused", "error", "judged", "note"];
const OUTCOME_WORDS = {
  ok: "exit 0", failed: "failed", signal: "signal", timeout: "timed out", refused: "refused", error: "error", judged: "judged only", note: "note",
};

/** Maps names to numbers and back, so that a column can hold numbers. */
class Names {
  constructor() { this.list = []; this.known = new Map(); }
  number(name) {
    let found = this.known.get(name);
    if (found === undefined) { found = this.list.length; this.list.push(name); this.known.set(name, found); }
    return found;
  }
}

const words = (call) => call.argv || call.files || [];
const commandText = (call) => call.shell !== undefined ? call.shell : words(call).map(quoted).join(" ");
const BARE = /^[\w@%+=:,./-]+$/;
function quoted(word) { return BARE.test(word) ? word : "'" + word.replaceAll("'", "'\"'\"'") + "'"; }

function ending(call) {
  const result = call.result;
  if (call.outcome === "failed" && result) return "exit " + result.exit_code;
  if (call.outcome === "signal" && result) return "signal " + result.signal;
  return entry(OUTCOME_WORDS, call.outcome) || "";
}
function cpu(call) {
  const usage = call.result && call.result.usage;
  return usage ? (usage.user_seconds || 0) + (usage.system_seconds || 0) : undefined;
}
const memory = (call) => call.result && call.result.usage && call.result.usage.peak_memory_bytes;
const duration = (call) => call.result && call.outcome !== "refused" ? call.result.duration_ms : undefined;
const printedBytes = (call) => call.result && call.outcome !== "refused" ? (call.result.stdout_bytes || 0) + (call.result.stderr_bytes || 0) : undefined;
function diskBytes(call) {
  const usage = call.result && call.result.usage;
  return usage && (usage.read_bytes !== undefined || usage.written_bytes !== undefined) ? (usage.read_bytes || 0) + (usage.written_bytes || 0) : undefined;
}
const isStopped = (call) => Boolean(call.result && call.result.violations);
const asker = (call) => call.host || call.event || "";

// The states of a transaction and their labels. Without a record of its end, its calls were only tried.
const STATES = { tried: "tried", waiting: "waiting", applied: "applied", part: "applied in part", conflict: "conflict", undone: "undone", discarded: "discarded", nothing: "nothing changed" };
const SHORT_STATES = { ...STATES, part: "in part", nothing: "no change" }; // for a column
const STATE_OF = { kept: "waiting", "not undone": "conflict" };
function became(settled) {
  if (settled.became === "applied" && settled.in_part) return "part";
  return entry(STATE_OF, settled.became) || (entry(STATES, settled.became) ? settled.became : "tried");
}
function changeText(change) {
  return (change.kind || "") + " " + (change.old_path ? change.old_path + " → " : "") + (change.path || "");
}
function settledText(settled) {
  const told = (settled.changes || []).map(changeText), left = (settled.changed || 0) - told.length;
  const parts = [settled.changed ? plural(settled.changed, "change") + ": " + told.join(", ") + (left > 0 ? `, and ${count(left)} more` : "") : ""];
  for (const name of ["conflicts", "refused"]) if (settled[name]) parts.push(name + ": " + settled[name].map((one) => one.path || "").join(", "));
  return parts.filter(Boolean).join("; ") || "nothing was changed";
}

const SORTS = { at: null, took: duration, cpu, memory };

class Store {
  constructor() {
    this.calls = [];
    this.index = new Map();
    this.rules = new Names(); this.projects = new Names(); this.askers = new Names();
    this.decision = []; this.outcome = []; this.at = []; this.axes = []; this.ruleNumbers = []; this.project = []; this.by = []; this.stopped = []; this.hay = [];
    this.filter = { decisions: new Set(), outcomes: new Set(), stopped: false, axis: "", rule: "", project: "", by: "", state: "", transaction: "", text: "", task: "", from: null, to: null };
    this.transactions = new Map(); // by id: the numbers of their calls and notes
    this.sort = { by: "at", down: true };
    this.shown = [];
    this.base = [];
    this.counts = {};
  }

  /** Add calls or replace known ones. Returns the keys of the new ones. */
  add(calls) {
    const fresh = [];
    for (const call of calls) {
      let i = this.index.get(call.key);
      if (i === undefined) {
        i = this.calls.length;
        this.index.set(call.key, i);
        fresh.push(call.key);
      }
      this.calls[i] = call;
      const findings = call.findings || [];
      this.decision[i] = DECISIONS.indexOf(call.decision);
      this.outcome[i] = call.outcome;
      this.at[i] = call.at === undefined ? null : call.at;
      this.axes[i] = findings.map((finding) => finding.axis);
      this.ruleNumbers[i] = findings.map((finding) => this.rules.number(finding.rule || ""));
      this.project[i] = this.projects.number(call.root || "");
      this.by[i] = this.askers.number(asker(call));
      this.stopped[i] = isStopped(call);
      if (call.transaction) this.join(call.transaction, i);
      this.hay[i] = [commandText(call), call.root, call.task, call.reason, call.error, call.tool, call.id, call.transaction, call.settled && settledText(call.settled), ...findings.map((finding) => finding.rule)].filter(Boolean).join("\n").toLowerCase();
    }
    return fresh;
  }

  join(id, i) {
    const known = this.transactions.get(id);
    if (known) { known.members.add(i); known.state = null; } else this.transactions.set(id, { members: new Set([i]), state: null });
  }

  /** Return the calls and notes of a transaction, sorted by time. */
  members(id) {
    const known = this.transactions.get(id);
    const place = (i) => [this.at[i] ?? 0, this.calls[i].settled ? 1 : 0, this.calls[i].seq || 0];
    return known ? [...known.members].sort((a, b) => { const [x, y] = [place(a), place(b)]; return x[0] - y[0] || x[1] - y[1] || x[2] - y[2]; }) : [];
  }

  /** Return the last state of a transaction. */
  state(id) {
    const known = this.transactions.get(id);
    if (!known) return "";
    if (known.state === null) known.state = this.members(id).reduce((state, i) => (this.calls[i].settled ? became(this.calls[i].settled) : state), "tried");
    return known.state;
  }

  get states() { return Object.keys(STATES).filter((name) => [...this.transactions.keys()].some((id) => this.state(id) === name)); }

  get isFiltered() {
    const f = this.filter;
    return Boolean(f.decisions.size || f.outcomes.size || f.stopped || f.axis || f.rule || f.project || f.by || f.state || f.transaction || f.text || f.task || f.from !== null);
  }

  /** Apply the filters. `base` ignores verdict, outcome and time, because the counts and the timeline show all of those. */
  refresh() {
    const f = this.filter;
    const rule = f.rule === "" ? -1 : this.rules.known.get(f.rule) ?? -2;
    const project = f.project === "" ? -1 : this.projects.known.get(f.project) ?? -2;
    const by = f.by === "" ? -1 : this.askers.known.get(f.by) ?? -2;
    const text = f.text.toLowerCase();
    const wanted = DECISIONS.map((name) => !f.decisions.size || f.decisions.has(name));
    const counts = Object.assign(Object.create(null), { all: 0, stopped: 0 });
    for (const name of [...DECISIONS, ...OUTCOMES]) counts[name] = 0;
    const base = [], shown = [];
    for (let i = 0, n = this.calls.length; i < n; i += 1) {
      if (project !== -1 && this.project[i] !== project) continue;
      if (by !== -1 && this.by[i] !== by) continue;
      if (rule !== -1 && !this.ruleNumbers[i].includes(rule)) continue;
      if (f.axis && !this.axes[i].includes(f.axis)) continue;
      if (f.task && this.calls[i].task !== f.task) continue;
      if (f.transaction && this.calls[i].transaction !== f.transaction) continue;
      if (f.state && this.state(this.calls[i].transaction) !== f.state) continue;
      if (text && !this.hay[i].includes(text)) continue;
      base.push(i);
      if (f.from !== null && !(this.at[i] >= f.from && this.at[i] <= f.to)) continue;
      counts.all += 1;
      counts[DECISIONS[this.decision[i]]] += 1;
      counts[this.outcome[i]] += 1;
      if (this.stopped[i]) counts.stopped += 1;
      if (!wanted[this.decision[i]] || (f.outcomes.size && !f.outcomes.has(this.outcome[i])) || (f.stopped && !this.stopped[i])) continue;
      shown.push(i);
    }
    this.base = base;
    this.span = null;
    for (const at of this.at) {
      if (at === null) continue;
      if (!this.span) this.span = [at, at];
      else if (at < this.span[0]) this.span[0] = at;
      else if (at > this.span[1]) this.span[1] = at;
    }
    this.counts = counts;
    this.shown = this.sorted(shown);
  }

  sorted(shown) {
    const of = SORTS[this.sort.by];
    const value = of ? (i) => of(this.calls[i]) ?? -1 : (i) => this.at[i] ?? 0;
    let least = Infinity, most = -Infinity;
    const values = new Float64Array(shown.length);
    shown.forEach((i, n) => { const v = value(i); values[n] = v; if (v < least) least = v; if (v > most) most = v; });
    // Packs value and index into one number: sorting numbers is twenty times faster than with a comparison function.
    const places = 2 ** Math.ceil(Math.log2(shown.length + 1)), levels = 2 ** 52 / places, scale = most > least ? (levels - 1) / (most - least) : 0;
    for (let n = 0; n < values.length; n += 1) values[n] = Math.floor((values[n] - least) * scale) * places + n;
    values.sort();
    const made = new Array(shown.length);
    for (let n = 0; n < values.length; n += 1) made[this.sort.down ? values.length - 1 - n : n] = shown[values[n] % places];
    return made;
  }
}
