// The calls over time: allowed ones above the line, others below. Dragging selects a time range.

const BINS = 180;
const TOP = 16; // for the legend
const FEW = 160; // up to this number, each call is drawn with its duration

class Timeline {
  constructor(store, changed) {
    this.store = store;
    this.changed = changed;
    this.box = byId("timeline");
    this.svg = svg("svg", { role: "img", preserveAspectRatio: "none" });
    const legend = [["ok", "allowed"], ["failed", "allowed, did not end with 0"], ["askc", "asked"], ["denyc", "denied"]];
    this.box.append(this.svg, el("figcaption", {}, legend.map(([kind, name]) => el("span", {}, el("i", { class: kind }), name))));
    this.drag = null;
    this.svg.addEventListener("pointerdown", (event) => { if (this.scale) { this.drag = this.time(event); this.svg.setPointerCapture(event.pointerId); } });
    this.svg.addEventListener("pointermove", (event) => this.moved(event));
    this.svg.addEventListener("pointerup", (event) => this.picked(event));
    this.svg.addEventListener("pointerleave", (event) => hint(event, ""));
    this.svg.addEventListener("dblclick", () => this.pick(null, null));
    new ResizeObserver(once(() => this.draw())).observe(this.box);
  }

  pick(from, to) {
    this.store.filter.from = from;
    this.store.filter.to = to;
    this.changed();
  }

  time(event) {
    const box = this.svg.getBoundingClientRect();
    const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    return this.scale.from + share * (this.scale.to - this.scale.from);
  }

  moved(event) {
    if (!this.scale) return;
    if (this.drag !== null) { this.brush(this.drag, this.time(event)); return; }
    const at = this.time(event);
    const bin = this.bins && this.bins[Math.min(BINS - 1, Math.floor((at - this.scale.from) / this.scale.step))];
    const told = bin && bin.all ? `\n${plural(bin.all, "call")}: ${bin.ok + bin.failed} allowed, ${bin.ask} asked, ${bin.deny} denied` : "";
    hint(event, (this.scale.timed ? day(at) + " " + clock(at) : "call " + Math.round(at + 1)) + told);
  }

  picked(event) {
    if (this.drag === null) return;
    const [a, b] = [this.drag, this.time(event)];
    this.drag = null;
    if (!this.scale.timed) { this.draw(); return; }
    if (Math.abs(a - b) < (this.scale.to - this.scale.from) / 300) this.pick(null, null);
    else this.pick(Math.min(a, b), Math.max(a, b));
  }

  brush(a, b) {
    const x = (at) => ((at - this.scale.from) / (this.scale.to - this.scale.from)) * this.width;
    if (!this.mark) { this.mark = svg("rect", { class: "brush", y: 0 }); }
    this.mark.setAttribute("x", Math.min(x(a), x(b)));
    this.mark.setAttribute("width", Math.max(1, Math.abs(x(a) - x(b))));
    this.mark.setAttribute("height", this.height - 16);
    this.svg.append(this.mark);
  }

  draw() {
    const box = this.svg.getBoundingClientRect();
    const width = this.width = Math.max(200, Math.round(box.width)), height = this.height = Math.round(box.height) || 92;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const { base, at } = this.store;
    const timed = base.some((i) => at[i] !== null);
    let from = Infinity, to = -Infinity;
    for (let n = 0; n < base.length; n += 1) {
      const t = timed ? at[base[n]] : n;
      if (t !== null) { from = Math.min(from, t); to = Math.max(to, t); }
    }
    this.scale = null;
    this.svg.replaceChildren();
    if (from > to) return;
    if (to - from < (timed ? 1000 : 1)) { const middle = (from + to) / 2, half = timed ? 500 : 0.5; from = middle - half; to = middle + half; }
    const slack = (to - from) * 0.01;
    from -= slack; to += slack;
    this.scale = { from, to, step: (to - from) / BINS, timed };
    this.ticks();
    if (base.length <= FEW) { this.bins = null; this.marks(); } else this.bars();
    this.label(base);
    this.point(this.pointed);
    if (this.store.filter.from !== null && timed) this.brush(this.store.filter.from, this.store.filter.to);
  }

  /** Mark a call. */
  point(call) {
    this.pointed = call;
    if (this.cursor) this.cursor.remove();
    if (!call || !this.scale || (this.scale.timed && call.at === undefined)) return;
    const x = this.x(this.scale.timed ? call.at : this.store.base.indexOf(this.store.index.get(call.key)));
    this.cursor = svg("path", { class: "cursor", d: `M${x} ${TOP - 4}V${this.height - 16}` });
    this.svg.append(this.cursor);
  }

  label(base) {
    const counts = [0, 0, 0];
    for (const i of base) counts[this.store.decision[i]] += 1;
    const span = this.scale.timed ? `from ${day(this.scale.from)} ${clock(this.scale.from)} to ${day(this.scale.to)} ${clock(this.scale.to)}` : "in log order";
    this.svg.setAttribute("aria-label", `${plural(base.length, "call")} ${span}: ${counts[0]} allowed, ${counts[1]} asked about, ${counts[2]} denied`);
  }

  get line() { return Math.round(TOP + (this.height - 16 - TOP) * 0.62); }

  x(at) { return ((at - this.scale.from) / (this.scale.to - this.scale.from)) * this.width; }

  ticks() {
    const { width, height } = this;
    this.svg.append(svg("line", { class: "base", x1: 0, x2: width, y1: this.line, y2: this.line }));
    const room = Math.max(2, Math.floor(width / 150)), wanted = this.scale.timed ? room : Math.max(1, Math.min(room, this.store.base.length - 1));
    for (let n = 0; n <= wanted; n += 1) {
      const at = this.scale.from + ((this.scale.to - this.scale.from) * n) / wanted;
      const span = this.scale.to - this.scale.from;
      const words = !this.scale.timed ? String(Math.max(1, Math.round(at + 1))) : span > 2 * 86400000 ? day(at).slice(5) + " " + clock(at).slice(0, 5) : span > 600000 ? clock(at).slice(0, 5) : span > 10000 ? clock(at) : clock(at) + "." + Math.floor((at % 1000) / 100);
      const x = (width * n) / wanted;
      this.svg.append(svg("line", { class: "axis", x1: x, x2: x, y1: height - 16, y2: height - 12 }));
      this.svg.append(svg("text", { x, y: height - 3, "text-anchor": n === 0 ? "start" : n === wanted ? "end" : "middle" }, words));
    }
  }

  kind(i) {
    const { decision, outcome } = this.store;
    if (decision[i]) return DECISIONS[decision[i]];
    return ["ok", "judged", "note"].includes(outcome[i]) ? "ok" : "failed";
  }

  bars() {
    const bins = Array.from({ length: BINS }, () => ({ all: 0, ok: 0, failed: 0, ask: 0, deny: 0 }));
    this.store.base.forEach((i, n) => {
      const at = this.scale.timed ? this.store.at[i] : n;
      if (at === null) return;
      const bin = bins[Math.min(BINS - 1, Math.floor((at - this.scale.from) / this.scale.step))];
      bin.all += 1;
      bin[this.kind(i)] += 1;
    });
    this.bins = bins;
    const up = Math.max(1, ...bins.map((bin) => bin.ok + bin.failed)), down = Math.max(1, ...bins.map((bin) => bin.ask + bin.deny));
    const line = this.line, above = line - TOP - 2, below = this.height - 16 - line - 2, w = this.width / BINS;
    bins.forEach((bin, n) => {
      // A single call among thousands must stay visible.
      const high = (value, most, room) => (value ? Math.max(1.5, (value / most) * room) : 0);
      const parts = [["ok", high(bin.ok, up, above), -1], ["failed", high(bin.failed, up, above), -1], ["deny", high(bin.deny, down, below), 1], ["ask", high(bin.ask, down, below), 1]];
      let upTo = line - 0.5, downTo = line + 0.5;
      for (const [kind, size, turn] of parts) {
        if (!size) continue;
        const y = turn < 0 ? (upTo -= size) : downTo;
        if (turn > 0) downTo += size;
        this.svg.append(svg("rect", { class: "fill-" + kind, x: n * w + 0.4, y, width: Math.max(0.8, w - 0.8), height: size }));
      }
    });
  }

  marks() {
    const ends = [[], []];
    const { base, at, calls } = this.store;
    // As many lanes as fit between the legend and the time labels.
    const lanes = [this.line - TOP + 3, this.height - 16 - this.line].map((room) => Math.max(1, Math.floor(room / 9)));
    base.forEach((i, n) => {
      const kind = this.kind(i), refused = kind === "ask" || kind === "deny" ? 1 : 0;
      const start = this.x(this.scale.timed ? at[i] ?? this.scale.from : n);
      const long = this.scale.timed ? this.x(this.scale.from + (duration(calls[i]) || 0)) : 0;
      const width = Math.max(5, long);
      let lane = ends[refused].findIndex((end) => end <= start - 1);
      if (lane < 0) lane = ends[refused].length;
      lane %= lanes[refused];
      ends[refused][lane] = start + width;
      const y = refused ? this.line + 4 + lane * 9 : this.line - 10 - lane * 9;
      const mark = svg("rect", { class: "fill-" + kind + (kind === "failed" ? " stroke-allow" : kind === "ask" ? " stroke-ask" : ""), x: start, y, width, height: 7, rx: kind === "ok" ? 3.5 : 0.5 });
      this.svg.append(mark);
    });
  }
}
