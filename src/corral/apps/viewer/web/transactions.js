// The transaction of a call: its state, its changes, and its other calls.

const MAX_MEMBERS = 50;

function transactionSection(call, store, picks) {
  if (!call.transaction) return null;
  const state = store.state(call.transaction), members = store.members(call.transaction);
  // After a conflict or a partial apply, the rest still waits.
  const last = members.map((i) => store.calls[i].settled).filter(Boolean).pop();
  const waits = last && !call.task && (["waiting", "part"].includes(state) || last.became === "conflict");
  const id = plain(call.transaction, 200);
  return section("Transaction", "", el("div", { class: "card", id: "transaction" },
    el("header", {}, sign(state), el("b", {}, STATES[state]), el("span", { class: "mono foreign" }, id),
      el("button", { class: "link", type: "button", onclick: () => picks.transaction(call.transaction) }, "show only this")),
    waits ? el("p", { class: "note" }, state === "part" ? "The rest waits for the user: " : "It waits for the user: ", ["history", "apply", "discard"].map((verb, n) => [n ? ", " : "", el("span", { class: "mono foreign" }, `corral ${verb} ${id}`)])) : null),
  el("ol", { class: "chain", id: "members" }, members.slice(0, MAX_MEMBERS).map((i) => member(store.calls[i], i, call, picks))),
  members.length > MAX_MEMBERS ? el("p", { class: "note" }, `and ${count(members.length - MAX_MEMBERS)} more`) : null);
}

function member(one, i, call, picks) {
  const isOpen = one.key === call.key, when = one.at === undefined ? "" : clock(one.at);
  const name = one.settled ? STATES[became(one.settled)] : shownText(one);
  return el("li", {}, sign(one.settled ? became(one.settled) : one.outcome),
    isOpen ? el("b", { class: one.settled ? "" : "mono foreign" }, plain(name, 300)) : el("button", { class: "link foreign" + (one.settled ? "" : " mono"), type: "button", onclick: () => picks.call(i) }, plain(name, 300)),
    el("span", { class: "idle" }, [" ", one.settled ? "" : ending(one), when].filter(Boolean).join(" · ").replace(" · ", " ")),
    one.settled ? settledLines(one.settled) : null);
}

function settledLines(settled) {
  const changes = settled.changes || [], left = (settled.changed || 0) - changes.length;
  const lines = [
    ...changes.map((change) => el("li", {}, el("span", { class: "kind" }, plain(change.kind || "", 20)), el("span", { class: "mono foreign" }, plain((change.old_path ? change.old_path + " → " : "") + (change.path || ""), 400)))),
    ...(left > 0 ? [el("li", {}, el("span", { class: "kind" }), `and ${count(left)} more`)] : []),
    ...leftOut(settled.conflicts, "conflict"), ...leftOut(settled.refused, "protected"),
  ];
  return lines.length ? el("ul", { class: "changes" }, lines) : null;
}

function leftOut(found, word) {
  return (found || []).map((one) => el("li", { class: "deny" }, el("span", { class: "kind" }, sign(word === "conflict" ? "conflict" : "refused"), word), el("span", { class: "mono foreign" }, plain(one.path || "", 400)), one.why ? el("span", { class: "sub foreign" }, plain(one.why, 400)) : null));
}
