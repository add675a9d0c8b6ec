// Loads calls, draws the selected ones, handles keys.

const blocks = (kind) => [...document.querySelectorAll(`script[data-kind="${kind}"]`)];
const parsed = (block) => JSON.parse(block.textContent);
const meta = parsed(blocks("meta")[0]);
const store = new Store();
const list = new List(store, (call, { opens }) => { timeline.point(call); if (opens || !byId("detail").hidden) openCall(call); });
const timeline = new Timeline(store, () => changed());
const plots = new Plots(store, (rule) => { setRule(rule); });
const evals = new Evals((task) => { store.filter.task = task; changed(); tab("calls"); });
const detail = new Detail(meta, store, loadDetail, { close: () => closeDetail(), rule: setRule, transaction: setTransaction, call: (i) => { tab("calls"); list.select(i, { opens: true }); } });
let current = "calls";

const CHIPS = [
  ["allow", "allow", "decisions"], ["ask", "ask", "decisions"], ["deny", "deny", "decisions"], null,
  ["failed", "failed", "outcomes"], ["signal", "signal", "outcomes"], ["timeout", "timed out", "outcomes"], ["error", "corral failed", "outcomes"], ["stopped", "violations", "stopped"],
];

function drawChips() {
  const { counts, filter } = store;
  const focused = document.activeElement && document.activeElement.dataset.chip;
  byId("chips").replaceChildren(el("button", { type: "button", class: "chip", "data-chip": "all", onclick: clear, title: "All calls" }, el("b", {}, count(counts.all || 0)), el("span", {}, counts.all === 1 ? "call" : "calls")),
    ...CHIPS.map((chip) => {
      if (!chip) return el("span", { class: "gap" });
      const [name, words_, group] = chip;
      const isOn = group === "stopped" ? filter.stopped : filter[group].has(name);
      if (group !== "decisions" && !counts[name] && !isOn) return null;
      return el("button", {
        type: "button", class: "chip" + (counts[name] ? "" : " none"), "data-chip": name, "aria-pressed": isOn ? "true" : "false", onclick: () => {
          if (group === "stopped") filter.stopped = !filter.stopped;
          else if (!filter[group].delete(name)) filter[group].add(name);
          changed();
        },
      }, sign(name), el("b", {}, count(counts[name] || 0)), el("span", {}, words_));
    }).filter(Boolean),
    ...(filter.task ? [el("button", { type: "button", class: "chip", "data-chip": "task", "aria-pressed": "true", title: "All tasks", onclick: () => { filter.task = ""; changed(); } }, el("span", {}, "task"), el("b", { class: "foreign" }, plain(filter.task, 60)), "×")] : []),
    ...(filter.transaction ? [el("button", { type: "button", class: "chip", "data-chip": "transaction", "aria-pressed": "true", title: "All transactions", onclick: () => setTransaction("") }, el("span", {}, "transaction"), el("b", { class: "foreign" }, plain(filter.transaction, 60)), "×")] : []));
  if (focused) document.querySelector(`[data-chip="${focused}"]`)?.focus();
  byId("clear").hidden = !store.isFiltered;
}

const SELECTS = {
  axis: ["Axis", () => [...meta.axes, "gate"], (name) => name],
  rule: ["Rule", () => [...store.rules.list].filter(Boolean).sort(), (name) => plain(name, 80)],
  project: ["Project", () => [...store.projects.list].filter(Boolean).sort(), (name) => plain(name.length > 48 ? "…" + name.slice(-47) : name, 60)],
  state: ["Transaction", () => store.states, (name) => STATES[name]],
  by: ["Host", () => [...store.askers.list].filter(Boolean).sort(), (name) => plain(name, 60)],
};
const drawn = {};
function drawSelects() {
  for (const [id, [any, names, shown]] of Object.entries(SELECTS)) {
    const found = names(), select = byId(id);
    const told = found.join("\n");
    if (drawn[id] !== told) {
      drawn[id] = told;
      select.replaceChildren(el("option", { value: "" }, any), ...found.map((name) => el("option", { value: name }, shown(name))));
    }
    select.value = store.filter[id];
    select.classList.toggle("set", store.filter[id] !== "");
    // A single project needs no filter. A single state does, since most calls are in no transaction.
    select.parentElement.hidden = found.length < (id === "state" ? 1 : 2) && store.filter[id] === "";
  }
}

function draw() {
  store.refresh();
  drawChips();
  drawSelects();
  if (current === "calls") { timeline.draw(); list.redraw(); }
  if (current === "plots") plots.draw();
}
const changed = once(draw);

function clear() {
  Object.assign(store.filter, { decisions: new Set(), outcomes: new Set(), stopped: false, axis: "", rule: "", project: "", by: "", state: "", transaction: "", text: "", task: "", from: null, to: null });
  byId("text").value = "";
  changed();
}

function setRule(rule) {
  store.filter.rule = rule || "";
  showList();
}

function setTransaction(id) {
  store.filter.transaction = id;
  showList();
}

/** Show the filtered list. In a narrow window the open call would cover it. */
function showList() {
  changed();
  tab("calls");
  if (matchMedia("(max-width: 760px)").matches && !byId("detail").hidden) closeDetail();
}

function tab(name) {
  current = name;
  for (const other of ["calls", "plots", "evals"]) {
    const button = byId("tab-" + other);
    button.setAttribute("aria-selected", other === name ? "true" : "false");
    button.tabIndex = other === name ? 0 : -1;
    byId("view-" + other).hidden = other !== name;
  }
  byId("bar").hidden = name === "evals";
  if (name === "evals") evals.draw();
  changed();
}

function openCall(call) {
  byId("split").classList.add("with-detail");
  detail.show(call);
}

function closeDetail() {
  detail.hide();
  byId("split").classList.remove("with-detail");
  byId("list").focus({ preventScroll: true });
}

// Loading, from the server or from the data in this file.

const token = takeToken();
function takeToken() {
  const match = /^#token=([\w-]+)$/.exec(location.hash);
  if (match) {
    remember("corral-token", match[1], sessionStorage);
    history.replaceState(null, "", location.pathname);
    return match[1];
  }
  return meta.live ? recalled("corral-token", () => sessionStorage) : "";
}
function remember(name, value, place) { try { place.setItem(name, value); } catch { /* a page from a disk may have no storage */ } }
function recalled(name, place) { try { return place().getItem(name) || ""; } catch { return ""; } }

async function ask(path) {
  const answer = await fetch(path, { headers: { "X-Corral-Token": token }, cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw Object.assign(new Error(await answer.text()), { status: answer.status });
  return answer.json();
}

async function loadDetail(key) {
  if (meta.live) {
    try { return await ask("/api/detail?key=" + encodeURIComponent(key)); } catch { return { parts: { said: "corral view does not answer any more." } }; }
  }
  const details = loadDetail.known || (loadDetail.known = parsed(blocks("details")[0]));
  const about = entry(details.calls, key) || {};
  return { ...about, parts: about.parts === undefined ? { said: "The report has too many calls to judge this one again." } : details.parts[about.parts] };
}

function say(state, words_) {
  const box = byId("live");
  if (box.className === "live " + state && box.textContent === words_) return; // a screen reader would read it again
  box.className = "live " + state;
  box.replaceChildren(...(state ? [el("span", { class: "dot" })] : []), words_);
}

function take(calls) {
  const fresh = store.add(calls);
  if (detail.call) {
    const told = calls.find((call) => call.key === detail.call.key);
    if (told) detail.show(told);
    else if (calls.some((call) => call.transaction && call.transaction === detail.call.transaction)) detail.draw();
  }
  return fresh;
}

function takeEvals(document_) {
  if (!document_) return;
  const isFirst = !evals.document;
  byId("tab-evals").hidden = false;
  evals.document = document_;
  if (isFirst && current === "calls") tab("evals");
  else if (current === "evals") evals.draw();
}

const MANY = 20000; // above this number of calls, the page draws only once a second
let drawnAt = 0, waiting = 0;
/** Draw at most once in so many milliseconds: drawing takes longer than reading. */
function drawSoon(gap) {
  if (waiting) return;
  waiting = setTimeout(() => { waiting = 0; drawnAt = performance.now(); changed(); }, Math.max(0, drawnAt + gap - performance.now()));
}

async function follow() {
  let after = 0, version = 0, isLoaded = false;
  for (;;) {
    try {
      const news = await ask(`/api/calls?after=${after}&evals=${version}&loaded=${isLoaded ? 1 : 0}`);
      after = news.next;
      const fresh = take(news.calls);
      list.fresh = new Set(isLoaded ? fresh : []);
      if (news.evals > version) { version = news.evals; takeEvals(await ask("/api/evals")); }
      if (news.calls.length) drawSoon(isLoaded && store.calls.length < MANY ? 0 : 1000);
      if (news.closed) { say("off", "ended"); changed(); return; }
      if (!isLoaded && news.loaded && !news.more) changed();
      isLoaded = news.loaded && !news.more;
      say(isLoaded ? "on" : "", isLoaded ? "live" : `loading ${count(store.calls.length)}…`);
      document.documentElement.dataset.state = isLoaded ? "ready" : "loading";
      await breath();
    } catch (error) {
      if (error.status === 401) { say("off", "no token"); byId("empty").textContent = error.message; return; }
      say("off", "not connected");
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

async function unpack() {
  for (const block of blocks("calls")) {
    take(parsed(block));
    block.remove();
    await breath();
  }
  takeEvals(parsed(blocks("evals")[0]));
  changed();
  document.documentElement.dataset.state = "ready";
}

// Keys, theme, start.

const KEYS = [["j  ↓", "next call"], ["k  ↑", "previous call"], ["Enter", "open the call"], ["Esc", "close, or clear the filters"], ["/", "search"], ["Home  End", "first, last"], ["[  ]", "only from this call on, only up to this call"], ["1 2 3", "calls, plots, evals"], ["t", "theme: system, light, dark"], ["?", "these keys"]];

/** Set an end of the time range to the selected call. */
function bound(isStart) {
  const call = list.selected === null ? null : store.calls[store.index.get(list.selected)];
  if (!call || call.at === undefined) return;
  const { filter } = store;
  if (isStart) Object.assign(filter, { from: call.at, to: filter.to !== null && filter.to > call.at ? filter.to : Math.max(...store.span, call.at) });
  else Object.assign(filter, { to: call.at, from: filter.from !== null && filter.from < call.at ? filter.from : Math.min(...store.span, call.at) });
  changed();
}

function help() {
  const box = byId("keys");
  box.replaceChildren(el("h1", { id: "keys-title" }, "Keys"), el("dl", {}, KEYS.map(([keys, what]) => [el("dt", {}, keys.split(/ +/).map((key) => [el("kbd", {}, key), " "])), el("dd", {}, what)])),
    el("p", { class: "note" }, `corral ${meta.version}. Drag over the timeline to select a time range.`));
  box.showModal();
}

function nextTheme() {
  const order = ["", "light", "dark"], now = document.documentElement.dataset.theme || "";
  const next = order[(order.indexOf(now) + 1) % 3];
  document.documentElement.dataset.theme = next;
  byId("theme").title = `Theme: ${next || "system"} (t)`;
  try { remember("corral-theme", next, localStorage); } catch { /* as above */ }
}

function escapeKey() {
  if (document.activeElement === byId("text") && byId("text").value) { byId("text").value = store.filter.text = ""; changed(); return; }
  if (document.activeElement === byId("text")) { byId("list").focus(); return; }
  if (!byId("detail").hidden) { closeDetail(); return; }
  if (store.isFiltered) clear();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (event.key === "Escape") { escapeKey(); return; }
  const place = document.activeElement;
  if (place && (place.tagName === "INPUT" && place.type !== "checkbox" || place.tagName === "SELECT")) {
    if (place.id === "text" && event.key === "Enter") { byId("list").focus(); list.edge(false); }
    return;
  }
  const open = () => { if (list.selected !== null && current === "calls") { list.select(store.index.get(list.selected), { opens: true }); byId("detail").focus({ preventScroll: true }); } };
  const inList = current === "calls" && !(place && place.closest("#detail, button, summary"));
  const moves = { j: () => list.move(1), k: () => list.move(-1), ...(inList ? { ArrowDown: () => list.move(1), ArrowUp: () => list.move(-1), PageDown: () => list.move(20), PageUp: () => list.move(-20), Home: () => list.edge(false), End: () => list.edge(true), Enter: open } : {}) };
  const others = { "/": () => { tab(current === "evals" ? "calls" : current); byId("text").focus(); byId("text").select(); }, "?": help, "[": () => bound(true), "]": () => bound(false), t: nextTheme, 1: () => tab("calls"), 2: () => tab("plots"), 3: () => { if (!byId("tab-evals").hidden) tab("evals"); } };
  const act = (current === "calls" && moves[event.key]) || others[event.key];
  if (act) { event.preventDefault(); act(); }
});

for (const name of ["calls", "plots", "evals"]) byId("tab-" + name).addEventListener("click", () => tab(name));
document.querySelector(".tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const shown = ["calls", "plots", "evals"].filter((name) => !byId("tab-" + name).hidden);
  const next = shown[(shown.indexOf(current) + step + shown.length) % shown.length];
  tab(next);
  byId("tab-" + next).focus();
  event.stopPropagation();
});
let typing = 0;
byId("text").addEventListener("input", (event) => { clearTimeout(typing); typing = setTimeout(() => { store.filter.text = event.target.value; changed(); }, 80); });
for (const id of Object.keys(SELECTS)) byId(id).addEventListener("change", (event) => { store.filter[id] = event.target.value; changed(); });
byId("clear").addEventListener("click", clear);
byId("help").addEventListener("click", help);
byId("theme").addEventListener("click", nextTheme);

document.documentElement.dataset.theme = recalled("corral-theme", () => localStorage);
byId("source").textContent = plain({ log: "audit log · ", eval: "eval · ", results: "results · ", sandbox: "sandbox · " }[meta.kind] + meta.name);
byId("source").title = plain(meta.name);
document.title = "corral view · " + plain(meta.name, 120);
if (meta.kind === "eval") store.sort.down = false; // evals have no times: sort by task
list.head();
if (meta.live) { say("", "loading…"); follow(); } else { say("", "report"); unpack(); }
draw();
