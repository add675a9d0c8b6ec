// Runs of evals: pass rates per tag, the tasks, and the changes between two runs.

const STATUSES = ["passed", "failed", "error", "skipped"];
const KINDS = ["broken", "mended", "changed", "new", "gone"];
const MAX_TASKS = 500; // rows of a table; the filters of the calls find the rest

class Evals {
  constructor(pickTask) {
    this.pickTask = pickTask;
    this.box = byId("view-evals");
    this.onlyBad = false;
    this.document = null;
  }

  draw(document_ = this.document) {
    this.document = document_;
    if (!document_) return;
    const { runs, comparison } = document_;
    const body = el("div", { class: "eval" }, el("div", { class: "side" }, runs.map((run) => this.summary(run))),
      comparison ? this.comparison(comparison, runs) : this.rates(runs[0]),
      this.tasks(runs[runs.length - 1]));
    const old = this.box.firstChild, top = old ? old.scrollTop : 0;
    this.box.replaceChildren(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Evals" }, body));
    this.box.firstChild.scrollTop = top;
  }

  summary(run) {
    const tried = run.counts.passed + run.counts.failed + run.counts.error;
    const done = run.tasks.length;
    return el("article", { class: "plot" }, el("h1", { class: "foreign" }, plain(run.name, 120)),
      el("p", { class: "note" }, tried ? `${percent(run.counts.passed / tried)} of ${plural(tried, "task")} passed` : "no task was tried", done < run.total ? ` · ${count(done)} of ${count(run.total)} done` : ""),
      done < run.total ? el("div", { class: "progress" }, svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "fill-accent", x: 0, y: 0, width: (100 * done) / run.total, height: 6 }))) : null,
      el("ul", { class: "totals" }, STATUSES.filter((name) => run.counts[name]).map((name) => el("li", {}, status(name), el("b", {}, count(run.counts[name])), name))));
  }

  rates(run) {
    if (!run.rates.length) return null;
    const rows = [...run.rates].sort((a, b) => share(a) - share(b) || (a.tag < b.tag ? -1 : 1));
    return [el("h2", {}, "Pass rates by tag"), el("div", { class: "plot" }, el("ul", { class: "bars two" }, rows.map((rate) => el("li", {},
      el("span", { class: "foreign" }, status(!rate.tried ? "skipped" : rate.passed === rate.tried ? "passed" : "failed"), " ", plain(rate.tag, 100)),
      svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "fill-idle", x: 0, y: 0, width: rate.tried ? 100 : 0, height: 10 }), svg("rect", { class: "fill-ok", x: 0, y: 0, width: rate.tried ? 100 * share(rate) : 0, height: 10 })),
      el("span", { class: "n" }, rate.tried ? `${rate.passed}/${rate.tried}` : "–")))))];
  }

  comparison(comparison, runs) {
    const found = KINDS.map((kind) => [kind, comparison.changes.filter((change) => change.kind === kind)]).filter((row) => row[1].length);
    const table = el("table", { class: "tasks", id: "changes" }, el("thead", {}, el("tr", {}, ["Change", "Task", "Before", "After"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, found.flatMap(([kind, changes]) => changes.slice(0, MAX_TASKS).map((change) => el("tr", {},
        el("td", { class: "state" }, sign(kind), " ", kind),
        el("td", {}, this.link(change.id), change.words.map((word) => el("div", { class: "words foreign" }, foreign(word, { oneLine: true })))),
        el("td", {}, change.before || "–"), el("td", {}, change.after || "–"))))));
    const told = found.length ? found.map(([kind, changes]) => el("li", {}, sign(kind), el("b", {}, count(changes.length)), kind)) : [el("li", {}, "nothing changed")];
    return [el("h2", {}, "Changes"), el("ul", { class: "totals", id: "change-counts" }, told, el("li", { class: "idle" }, `${count(comparison.same)} unchanged`)),
      el("p", {}), found.length ? table : null, this.moved(comparison, runs)];
  }

  moved(comparison, runs) {
    if (!comparison.tags.length) return null;
    const rows = comparison.tags.map((row) => {
      const { before, after } = row, x = (value) => 4 + 92 * value;
      const worse = before !== null && after !== null && after < before;
      const drawing = svg("svg", { viewBox: "0 0 100 18", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "fill-idle", x: 4, y: 8.5, width: 92, height: 1 }));
      if (before !== null && after !== null) drawing.append(svg("rect", { class: worse ? "fill-deny" : "fill-ok", x: Math.min(x(before), x(after)), y: 6.5, width: Math.max(0.8, Math.abs(x(after) - x(before))), height: 5 }));
      if (after !== null) drawing.append(svg("rect", { class: worse ? "fill-deny" : "fill-ok", x: x(after) - 0.5, y: 2, width: 1, height: 14 }));
      return el("div", { class: "slope" }, el("span", { class: "foreign" }, sign(worse ? "broken" : "mended"), " ", plain(row.tag, 100)), drawing, el("span", { class: "n" }, `${percent(before)} → ${percent(after)}`));
    });
    return [el("h2", {}, "Changed pass rates ", el("small", {}, `from ${plain(runs[0].name, 60)} to ${plain(runs[1].name, 60)}`)), el("div", { class: "plot" }, rows)];
  }

  tasks(run) {
    const rows = run.tasks.filter((task) => !this.onlyBad || task.status === "failed" || task.status === "error");
    const toggle = el("label", {}, el("input", { type: "checkbox", id: "only-bad", onchange: (event) => { this.onlyBad = event.target.checked; this.draw(); } }), " only what did not pass");
    toggle.firstChild.checked = this.onlyBad;
    return [el("h2", {}, "Tasks ", el("small", {}, plain(run.name, 60))), el("p", {}, toggle),
      el("table", { class: "tasks", id: "tasks" }, el("thead", {}, el("tr", {}, ["Status", "Task", "Tags", "Took"].map((name, n) => el("th", { scope: "col", class: n === 2 ? "opt" : n === 3 ? "num" : "" }, name)))),
        el("tbody", {}, rows.slice(0, MAX_TASKS).map((task) => el("tr", {},
          el("td", { class: "state" }, status(task.status), " ", task.status),
          el("td", {}, this.link(task.id), task.transaction ? settledTask(task.transaction) : null, task.words.map((word) => el("div", { class: "words foreign" }, foreign(word, { oneLine: true })))),
          el("td", { class: "opt foreign" }, task.tags.map((tag) => [el("span", { class: "pill" }, plain(tag, 60)), " "])),
          el("td", { class: "num" }, milliseconds(task.duration_ms)))))),
      rows.length > MAX_TASKS ? el("p", { class: "note" }, `and ${count(rows.length - MAX_TASKS)} more`) : null];
  }

  link(id) { return el("button", { type: "button", class: "link mono foreign", onclick: () => this.pickTask(id) }, plain(id, 200)); }
}

function settledTask(told) {
  const state = became(told), sizes = [[told.changed, "change"], [told.conflicts, "conflict"]].filter((size) => size[0]).map(([n, word]) => plural(n, word));
  return el("div", { class: "words settled" }, sign(state), " ", [`transaction: ${STATES[state]}`, ...sizes, told.refused ? `${count(told.refused)} protected` : ""].filter(Boolean).join(" · "));
}

// A failed task is bad, unlike a failed call.
const status = (name) => sign(name === "failed" ? "broken" : name);
const share = (rate) => (rate.tried ? rate.passed / rate.tried : 1);
const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(value > 0.99 && value < 1 ? 1 : 0) + "%");
