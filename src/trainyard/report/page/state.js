// The state of the page, which its address holds.

import { inks } from "./colours.js";

export const state = {
  theme: "", from: null, to: null, left: null, right: null, host: true, path: false, rank: null, account: "", kind: "", memory: "", q: "", by: "", open: "", steps: "", whatIf: "",
};
/** The parts of the state that a page begins with, and that its address need not hold. */
export const initial = { host: true };
const watchers = [];

/** Calls `watcher(changed names)` whenever the state changes. */
export const watch = (watcher) => watchers.push(watcher);

/** The state in the address of the page, checked: theme, visible and selected range of the timeline in ns, host lanes, critical path, rank, account, kind, category of memory, search text, order of ranks and its open groups, the number of the step of each compared run, what-if changes. */
export function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const [from, to] = (hash.get("t") ?? "").split("-").map(Number);
  const [left, right] = (hash.get("range") ?? "").split("-").map(Number);
  const rank = hash.get("rank");
  const theme = hash.get("theme");
  return {
    theme: ["light", "dark"].includes(theme) ? theme : "",
    from: from >= 0 && to > from ? from : null,
    to: from >= 0 && to > from ? to : null,
    left: left >= 0 && right > left ? left : null,
    right: left >= 0 && right > left ? right : null,
    host: hash.has("host") ? hash.get("host") !== "0" : initial.host,
    path: hash.get("path") === "1",
    rank: /^\d{1,9}$/.test(rank ?? "") ? Number(rank) : null,
    account: hash.get("account") ?? "",
    kind: hash.get("kind") ?? "",
    memory: hash.get("memory") ?? "",
    q: hash.get("q") ?? "",
    by: hash.get("by") ?? "",
    steps: /^\d{1,6}(\.\d{1,6})*$/.test(hash.get("steps") ?? "") ? hash.get("steps") : "",
    open: /^\d+(,\d+)*$/.test(hash.get("open") ?? "") ? hash.get("open") : "",
    whatIf: hash.get("whatif") ?? "",
  };
}

/** Applies a theme: `light`, `dark`, or empty for the system's. */
export function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  inks.clear();
}

let writing = 0;

/** Writes the state into the address of the page, so that the link restores it. */
export function writeHash() {
  writing = 0;
  const hash = new URLSearchParams();
  for (const name of ["theme", "account", "kind", "memory", "q", "by", "open", "steps"]) if (state[name]) hash.set(name, state[name]);
  if (state.whatIf) hash.set("whatif", state.whatIf);
  if (state.rank !== null) hash.set("rank", state.rank);
  if (state.from !== null) hash.set("t", `${Math.round(state.from)}-${Math.round(state.to)}`);
  if (state.left !== null) hash.set("range", `${Math.round(state.left)}-${Math.round(state.right)}`);
  if (state.path) hash.set("path", "1");
  if (state.host !== initial.host) hash.set("host", state.host ? "1" : "0");
  history.replaceState(null, "", `#${hash}`);
}

/** Changes the state and calls the watchers with the names that changed; writes the address unless `write` is false. */
export function setState(change, { write = true } = {}) {
  const changed = Object.keys(change).filter((name) => change[name] !== state[name]);
  if (!changed.length) return;
  Object.assign(state, change);
  if (changed.includes("theme")) showTheme(state.theme);
  for (const watcher of watchers) watcher(changed);
  // Browsers refuse hundreds of address changes a minute, and a drag makes sixty a second.
  if (write && !writing) writing = setTimeout(writeHash, 200);
}
