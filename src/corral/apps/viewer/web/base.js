// Elements, text and numbers. Only this file puts text from a log into the document, as text nodes.

const SVG = "http://www.w3.org/2000/svg";
const DECISIONS = ["allow", "ask", "deny"];

/** Make an element: properties that begin with "on" are listeners, "class" and others attributes, children nodes or text. */
function el(tag, properties = {}, ...children) {
  return dressed(document.createElement(tag), properties, children);
}

function svg(tag, properties = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), properties, children);
}

function dressed(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const byId = (id) => document.getElementById(id);

// Characters that move, hide or reorder text: controls, bidirectional overrides, invisible letters, lone surrogates.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|[\ud800-\udfff]/u;
const NAMES = { "\r": "\\r", "\n": "\\n", "\t": "\\t", "\u001b": "\\e" };

function escape(char) {
  const code = char.codePointAt(0);
  if (NAMES[char]) return NAMES[char];
  return code < 0x100 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u{" + code.toString(16) + "}";
}

/** Return foreign text as nodes with escapes for invisible characters. With oneLine, newlines are escaped too. */
function foreign(text, { oneLine = false } = {}) {
  const nodes = [];
  const pattern = oneLine ? new RegExp(UNSEEN.source + "|[\\n\\t]", "gu") : new RegExp(UNSEEN.source, "gu");
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > from) nodes.push(text.slice(from, match.index));
    nodes.push(el("span", { class: "esc", title: "U+" + match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0") }, escape(match[0])));
    from = match.index + match[0].length;
  }
  nodes.push(text.slice(from));
  return nodes;
}

/** Return foreign text as one string with escapes, for attributes and rows. */
function plain(text, most = 400) {
  const cut = text.length > most ? text.slice(0, most) + "…" : text;
  return UNSEEN.test(cut) || /[\n\t]/.test(cut) ? cut.replace(new RegExp(UNSEEN.source + "|[\\n\\t]", "gu"), escape) : cut;
}

// Each verdict and outcome has its own shape, so that colour is not needed to tell them apart.
const SHAPES = {
  allow: [["path", { d: "M3 7.5l3 3 6-7" }]],
  ask: [["path", { d: "M4.2 4.6a2.9 2.9 0 1 1 4.3 2.6c-1 .5-1.5 1-1.5 2" }], ["circle", { class: "solid", cx: 7, cy: 12.2, r: 1.3 }]],
  deny: [["path", { d: "M3 3l8 8M11 3l-8 8" }]],
  ok: [["circle", { class: "solid", cx: 7, cy: 7, r: 3.4 }]],
  failed: [["rect", { x: 3.2, y: 3.2, width: 7.6, height: 7.6 }]],
  signal: [["path", { d: "M7 2.5l5 9H2z" }]],
  timeout: [["circle", { cx: 7, cy: 7, r: 5 }], ["path", { d: "M7 4v3.2l2 1.4" }]],
  refused: [["circle", { cx: 7, cy: 7, r: 5 }], ["path", { d: "M3.5 10.5l7-7" }]],
  error: [["path", { d: "M7 2.5v5.5" }], ["circle", { class: "solid", cx: 7, cy: 11.6, r: 1.4 }]],
  judged: [["circle", { cx: 7, cy: 7, r: 3.4 }]],
  note: [["path", { d: "M3 7h8" }]],
  missing: [["path", { d: "M3.5 7h7" }]],
  stopped: [["path", { d: "M4.6 2h4.8L12 4.6v4.8L9.4 12H4.6L2 9.4V4.6z" }]],
  waiting: [["path", { d: "M3.5 2h7L3.5 12h7z" }]],
  part: [["circle", { cx: 7, cy: 7, r: 5 }], ["path", { class: "solid", d: "M7 2a5 5 0 0 1 0 10z" }]],
  undone: [["path", { d: "M3 5.5h6a3 3 0 0 1 0 6H5.5M5.5 3L3 5.5 5.5 8" }]],
  conflict: [["path", { d: "M1.5 7h4M12.5 7h-4M3.5 4.5L6 7 3.5 9.5M10.5 4.5L8 7l2.5 2.5" }]],
  discarded: [["path", { d: "M2.5 4h9M4 4l.7 8h4.6L10 4M5.5 4V2h3v2" }]],
};
const SHAPE_OF = { applied: "allow", tried: "judged", nothing: "note", passed: "allow", skipped: "note", broken: "deny", mended: "allow", new: "ok", gone: "missing", changed: "failed" };
const TONES = {
  allow: "allow", ask: "ask", deny: "deny", ok: "allow", failed: "idle", signal: "deny", timeout: "ask", refused: "deny", error: "deny", judged: "idle",
  applied: "allow", part: "allow", waiting: "ask", conflict: "deny", undone: "idle", discarded: "idle", tried: "idle", nothing: "idle",
  note: "idle", missing: "deny", stopped: "deny", passed: "allow", skipped: "idle", broken: "deny", mended: "allow", new: "allow", gone: "idle", changed: "ask",
};

/** Look up a name from foreign data. A name such as "constructor" must not find an inherited member. */
const entry = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);

function sign(name, tone = entry(TONES, name) || "idle") {
  const shape = entry(SHAPES, name) || entry(SHAPES, entry(SHAPE_OF, name)) || SHAPES.note;
  return svg("svg", { class: "sign " + tone, viewBox: "0 0 14 14", "aria-hidden": "true" }, shape.map(([tag, given]) => svg(tag, given)));
}

const grouped = new Intl.NumberFormat("en");
const count = (n) => grouped.format(n);

function milliseconds(value) {
  if (value === undefined || value === null) return "";
  if (value === 0) return "0 ms";
  if (value < 1) return value.toFixed(2) + " ms";
  if (value < 1000) return (value < 10 && !Number.isInteger(value) ? value.toFixed(1) : value.toFixed(0)) + " ms";
  if (value < 60000) return (value / 1000).toFixed(value < 10000 ? 2 : 1) + " s";
  const minutes = Math.floor(value / 60000);
  return minutes < 60 ? minutes + " min " + Math.round((value % 60000) / 1000) + " s" : Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
}

function bytes(value) {
  if (value === undefined || value === null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return (unit && value < 10 && !Number.isInteger(value) ? value.toFixed(1) : value.toFixed(0)) + " " + units[unit];
}

const pad = (n) => String(n).padStart(2, "0");
function clock(at) {
  const date = new Date(at);
  return pad(date.getHours()) + ":" + pad(date.getMinutes()) + ":" + pad(date.getSeconds());
}
function day(at) {
  const date = new Date(at);
  return date.getFullYear() + "-" + pad(date.getMonth() + 1) + "-" + pad(date.getDate());
}
const plural = (n, word) => count(n) + " " + word + (n === 1 ? "" : "s");

let tip = null;
/** Show words beside the pointer, or hide them if there are none. */
function hint(event, words) {
  if (!words) { if (tip) tip.hidden = true; return; }
  if (!tip) { tip = el("div", { class: "tip", "aria-hidden": "true" }); document.body.append(tip); }
  tip.hidden = false;
  tip.textContent = words;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 8)) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - box.height - 8) + "px";
}

/** Return a function that runs the work at most once per frame. */
function once(work) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => { waits = false; work(); });
  };
}
const breath = () => new Promise((resolve) => { const channel = new MessageChannel(); channel.port1.onmessage = () => { channel.port1.close(); resolve(); }; channel.port2.postMessage(0); });
