// Plots of the filtered calls: verdicts over time, refusals by rule, durations, CPU, memory, bytes.

const H = 150, LEFT = 34, BOTTOM = 18, GAP = 12, LEAST = 380, MOST = 1500;

class Plots {
  constructor(store, pickRule) {
    this.store = store;
    this.pickRule = pickRule;
    this.box = byId("view-plots");
    new ResizeObserver(once(() => { if (!this.box.hidden && this.box.clientWidth !== this.width) this.draw(); })).observe(this.box);
  }

  /** Draw the plots one at a time, so that the page stays responsive, and show them together. */
  async draw() {
    const { store } = this, turn = this.turn = (this.turn || 0) + 1;
    // Drawings have the width of their box, so that all text has the same size.
    this.width = this.box.clientWidth;
    const room = Math.min(MOST, this.width - 44), columns = Math.max(1, Math.floor((room + GAP) / (LEAST + GAP)));
    const inner = Math.floor((room - GAP * (columns - 1)) / columns) - 32;
    this.wide = room - 32;
    const calls = store.shown.map((i) => store.calls[i]);
    const ran = calls.filter((call) => duration(call) !== undefined);
    const makers = [
      () => this.verdicts(calls), () => this.rules(calls),
      () => histogram("Durations", ran, duration, milliseconds, 1, inner),
      () => histogram("CPU time", ran, (call) => cpu(call) === undefined ? undefined : cpu(call) * 1000, milliseconds, 1, inner),
      () => histogram("Peak memory", ran, memory, bytes, 1024 * 1024, inner),
      () => histogram("Bytes printed", ran, printedBytes, bytes, 64, inner),
      () => histogram("Disk bytes", ran, diskBytes, bytes, 4096, inner),
    ];
    const made = [];
    for (const make of calls.length ? makers : []) {
      made.push(make());
      await breath();
      if (turn !== this.turn) return;
    }
    if (!this.grid) {
      this.grid = el("div", { class: "grid" });
      this.box.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Plots" }, this.grid));
    }
    this.grid.replaceChildren(...(made.length ? made : [el("p", { class: "note" }, "No call matches these filters.")]));
  }

  verdicts(calls) {
    const bins = 48;
    const timed = calls.filter((call) => call.at !== undefined);
    let from = Infinity, to = -Infinity;
    for (const { at } of timed) { if (at < from) from = at; if (at >= to) to = at + 1; }
    const rows = Array.from({ length: bins }, () => [0, 0, 0]);
    const place = (call, n) => timed.length ? (call.at - from) / (to - from) : n / calls.length;
    (timed.length ? timed : calls).forEach((call, n) => { rows[Math.min(bins - 1, Math.floor(place(call, n) * bins))][DECISIONS.indexOf(call.decision)] += 1; });
    const most = Math.max(1, ...rows.map((row) => row[0] + row[1] + row[2]));
    const { wide } = this, w = (wide - LEFT) / bins, room = H - BOTTOM - 6;
    const drawing = svg("svg", { viewBox: `0 0 ${wide} ${H}`, role: "img", "aria-label": "Verdicts over time" }, axisY(most, wide, count));
    rows.forEach((row, n) => {
      let y = H - BOTTOM;
      ["deny", "ask", "ok"].forEach((kind, at) => {
        const size = (row[2 - at] / most) * room;
        if (!size) return;
        y -= size;
        drawing.append(svg("rect", { class: "fill-" + kind, x: LEFT + n * w + 1, y, width: Math.max(1, w - 2), height: size },
          svg("title", {}, `${row[0]} allowed, ${row[1]} asked, ${row[2]} denied`)));
      });
    });
    const words = timed.length ? [day(from) + " " + clock(from), day(to) + " " + clock(to)] : ["first", "last"];
    drawing.append(svg("text", { x: LEFT, y: H - 4 }, words[0]), svg("text", { x: wide, y: H - 4, "text-anchor": "end" }, words[1]));
    const sums = [0, 0, 0];
    for (const call of calls) sums[DECISIONS.indexOf(call.decision)] += 1;
    const legend = el("span", { class: "legend" }, [["ok", "allow"], ["askc", "ask"], ["denyc", "deny"]].map(([kind, name], n) => el("span", {}, el("i", { class: kind }), `${name} ${count(sums[n])}`)));
    const made = plot("Verdicts over time", timed.length ? "" : "in log order: the times are unknown", drawing, legend);
    made.classList.add("wide");
    return made;
  }

  rules(calls) {
    const found = new Map();
    for (const call of calls) {
      if (!call.findings) continue;
      for (const rule of new Set(call.findings.filter((finding) => finding.decision !== "allow").map((finding) => finding.rule))) {
        const row = found.get(rule) || { n: 0, decision: "ask" };
        row.n += 1;
        if (call.findings.some((finding) => finding.rule === rule && finding.decision === "deny")) row.decision = "deny";
        found.set(rule, row);
      }
    }
    const rows = [...found].sort((a, b) => b[1].n - a[1].n);
    const most = rows.length ? rows[0][1].n : 1;
    const list = el("ul", { class: "bars" }, rows.slice(0, 14).map(([rule, row]) => el("li", {},
      el("button", { type: "button", class: "mono foreign", title: "Show the calls with " + plain(rule, 100), onclick: () => this.pickRule(rule) }, sign(row.decision), " ", plain(rule, 100)),
      svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "fill-" + row.decision, x: 0, y: 0, width: Math.max(0.8, (100 * row.n) / most), height: 10 })),
      el("span", { class: "n" }, count(row.n)))));
    const said = rows.length > 14 ? `14 of ${rows.length} rules` : plural(rows.length, "rule");
    return plot("Refusals by rule", said, rows.length ? list : el("p", { class: "note" }, "No rule asked about or refused any of these calls."));
  }
}

function plot(title, said, drawing, legend = null) {
  return el("figure", { class: "plot" }, el("figcaption", {}, title, legend, el("small", {}, said)), drawing);
}

function axisY(most, width, format) {
  return [0, 0.5, 1].map((share) => {
    const y = H - BOTTOM - share * (H - BOTTOM - 6);
    return [svg("line", { x1: LEFT, x2: width, y1: y, y2: y }), svg("text", { x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, Number.isInteger(most * share) ? format(most * share) : "")];
  });
}

const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];

/** Return a histogram whose steps double, because the values spread over many powers of two. */
function histogram(title, calls, value, format, unit, width) {
  const column = new Float64Array(calls.length);
  let size = 0;
  for (const call of calls) { const v = value(call); if (v !== undefined && v !== null) { column[size] = v; size += 1; } }
  const values = column.subarray(0, size).sort();
  if (!values.length) return plot(title, "", el("p", { class: "note" }, "These calls do not have this value."));
  const step = (v) => (v < unit ? 0 : Math.floor(Math.log2(v / unit)) + 1);
  const first = step(values[0]), last = Math.max(step(values[values.length - 1]), first + 7);
  const rows = new Array(last - first + 1).fill(0);
  for (const v of values) rows[step(v) - first] += 1;
  const most = Math.max(...rows), w = (width - LEFT) / rows.length, room = H - BOTTOM - 6;
  const edge = (n) => (n === 0 ? 0 : unit * 2 ** (n - 1));
  const [p50, p95] = [quantile(values, 0.5), quantile(values, 0.95)];
  const said = `median ${format(p50)} · 95% ${format(p95)} · maximum ${format(values[values.length - 1])}`;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${H}`, role: "img", "aria-label": `${title}: ${said}` }, axisY(most, width, count));
  rows.forEach((n, at) => {
    const high = n ? Math.max(1.5, (n / most) * room) : 0, x = LEFT + at * w;
    drawing.append(svg("rect", { class: "fill-accent", x: x + 1, y: H - BOTTOM - high, width: Math.max(1, w - 2), height: high },
      svg("title", {}, `${plural(n, "call")} from ${format(edge(at + first))} to ${format(edge(at + first + 1))}`)));
    if (at % Math.ceil(rows.length / 6) === 0) drawing.append(svg("text", { x, y: H - 4, "text-anchor": at ? "middle" : "start" }, format(edge(at + first))));
  });
  return plot(title, said, drawing);
}
