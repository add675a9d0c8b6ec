// The list of calls. Only the visible rows are in the document.

const OVERSCAN = 8;

class List {
  constructor(store, open) {
    this.store = store;
    this.open = open;
    this.box = byId("list");
    this.canvas = byId("canvas");
    this.rows = new Map();
    this.selected = null; // the key of a call
    this.fresh = new Set();
    this.draw = once(() => this.drawNow());
    this.box.addEventListener("scroll", this.draw, { passive: true });
    new ResizeObserver(() => this.redraw()).observe(this.box);
    this.canvas.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.select(this.store.shown[Number(row.dataset.at)], { opens: true });
    });
    this.head();
  }

  head() {
    const columns = [["Time", "at", "c-time"], ["Verdict", "", ""], ["Outcome", "", ""], ["Call", "", ""], ["Rule", "", "c-rule"], ["Project", "", "c-project"], ["Took", "took", "end"]];
    const { by, down } = this.store.sort;
    byId("head").replaceChildren(...columns.map(([name, key, kind]) => {
      if (!key) return el("span", { class: kind }, name);
      const order = by === key ? (down ? " ↓" : " ↑") : "";
      return el("button", {
        type: "button", class: kind, "aria-label": "Sort by " + name.toLowerCase(), onclick: () => {
          this.store.sort = { by: key, down: by === key ? !down : true };
          this.head();
          this.store.refresh();
          this.box.scrollTop = 0;
          this.redraw();
        },
      }, name + order);
    }));
  }

  get rowHeight() { return this.height || (this.height = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"))); }

  /** Draw all rows again. New calls above do not move a list that is scrolled down. */
  redraw() {
    this.height = 0;
    const anchor = this.box.scrollTop > 0 && this.top !== undefined ? this.top : null;
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.canvas.style.height = this.store.shown.length * this.rowHeight + "px";
    if (anchor !== null) {
      const at = this.store.shown.indexOf(anchor.call);
      if (at >= 0) this.box.scrollTop = at * this.rowHeight + anchor.rest;
    }
    byId("head").style.paddingRight = 14 + this.box.offsetWidth - this.box.clientWidth + "px";
    const n = this.store.shown.length;
    // With more than one day, the column shows the day instead of the second.
    const ends = n && this.store.sort.by === "at" ? [this.store.shown[0], this.store.shown[n - 1]].map((i) => this.store.at[i]) : this.store.span;
    this.several = Boolean(n && ends) && ends[0] !== null && day(ends[0]) !== day(ends[1]);
    byId("empty").hidden = n > 0;
    byId("empty").textContent = this.store.calls.length ? "No call matches these filters." : "No calls yet.";
    this.box.setAttribute("aria-label", plural(n, "call"));
    this.drawNow();
  }

  drawNow() {
    const height = this.rowHeight, shown = this.store.shown;
    const first = Math.max(0, Math.floor(this.box.scrollTop / height) - OVERSCAN);
    const last = Math.min(shown.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / height) + OVERSCAN);
    const at = Math.floor(this.box.scrollTop / height);
    this.top = shown.length ? { call: shown[Math.min(at, shown.length - 1)], rest: this.box.scrollTop - at * height } : undefined;
    for (const [position, row] of this.rows) {
      if (position < first || position >= last) { row.remove(); this.rows.delete(position); }
    }
    for (let position = first; position < last; position += 1) {
      if (!this.rows.has(position)) {
        const row = this.row(position, this.store.calls[shown[position]]);
        row.style.top = position * height + "px";
        this.rows.set(position, row);
        this.canvas.append(row);
      }
    }
  }

  row(position, call) {
    const findings = call.findings || [];
    const worst = findings.find((finding) => finding.decision === call.decision) || findings[0];
    const took = duration(call);
    const row = el("div", {
      class: "row" + (call.decision === "allow" ? "" : ` ${call.decision}-row`) + (this.fresh.has(call.key) ? " new" : ""),
      role: "option", id: "row-" + position, "data-at": position, "aria-selected": call.key === this.selected ? "true" : "false",
      "aria-posinset": position + 1, "aria-setsize": this.store.shown.length,
    },
    el("span", { class: "time" }, call.at === undefined ? "" : this.several ? day(call.at).slice(5) + " " + clock(call.at).slice(0, 5) : clock(call.at)),
    // An entry without a call, such as a trusted file, has no verdict.
    call.outcome === "note" ? el("span", { class: "verdict idle" }, sign("note"), "note") : el("span", { class: "verdict " + call.decision }, sign(call.decision), call.decision),
    el("span", { class: "ending" + (["ok", "judged", "note"].includes(call.outcome) ? "" : " bad") }, call.settled ? [sign(became(call.settled)), SHORT_STATES[became(call.settled)]] : call.outcome === "note" ? plain(call.event || "", 40) : [sign(isStopped(call) && call.outcome !== "refused" ? "stopped" : call.outcome), ending(call)]),
    el("span", { class: "command foreign" }, call.transaction && !call.settled ? inTransaction(this.store.state(call.transaction)) : null, foreign(shownText(call), { oneLine: true })),
    el("span", { class: "rule foreign" }, worst ? plain(worst.rule || "", 80) : ""),
    el("span", { class: "project foreign" }, plain(call.task || (call.root || "").split("/").pop(), 80)),
    el("span", { class: "took" }, took === undefined ? "" : milliseconds(took), took === undefined ? null : bar(took)));
    return row;
  }

  /** Select a call by its number and scroll to it. */
  select(i, { opens = false, focus = false } = {}) {
    const call = this.store.calls[i];
    if (!call) return;
    this.selected = call.key;
    const position = this.store.shown.indexOf(i);
    const top = position * this.rowHeight;
    if (position >= 0 && top < this.box.scrollTop) this.box.scrollTop = top;
    if (position >= 0 && top + this.rowHeight > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + this.rowHeight - this.box.clientHeight;
    this.drawNow();
    for (const [at, row] of this.rows) row.setAttribute("aria-selected", at === position ? "true" : "false");
    if (position >= 0) this.box.setAttribute("aria-activedescendant", "row-" + position);
    this.open(call, { opens, focus });
  }

  move(step) {
    const shown = this.store.shown;
    if (!shown.length) return;
    const now = this.selected === null ? -1 : shown.indexOf(this.store.index.get(this.selected));
    const next = now < 0 ? 0 : Math.max(0, Math.min(shown.length - 1, now + step));
    this.select(shown[next]);
  }

  edge(last) {
    const shown = this.store.shown;
    if (shown.length) this.select(shown[last ? shown.length - 1 : 0]);
  }
}

function inTransaction(state) {
  return el("span", { class: "tx", title: "in a transaction: " + STATES[state] }, sign(state));
}

function shownText(call) {
  const text = call.settled ? settledText(call.settled) : commandText(call) || call.error || call.reason || call.tool || call.event || "";
  return text.length > 300 ? text.slice(0, 300) + "…" : text;
}

/** Return a duration on a logarithmic scale from a millisecond to a quarter of an hour. */
function bar(took) {
  const share = Math.max(0.03, Math.min(1, Math.log10(Math.max(took, 1)) / 6));
  return svg("svg", { viewBox: "0 0 36 6", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { x: 0, y: 0, width: 36 * share, height: 6, rx: 1 }));
}
