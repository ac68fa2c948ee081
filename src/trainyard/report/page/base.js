// Small tools: elements, colours, numbers, the tooltip, the state in the URL.

const view = JSON.parse(document.getElementById("data").textContent);
const content = document.getElementById("content");

/** An element with properties, attributes and children. Text is only ever text: children that are strings become text nodes. */
function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element; arguments as of `el`. */
function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Sets attributes and event listeners (`onNAME`) of an element, appends its children, and returns it. */
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// ---- numbers ------------------------------------------------------------------------------------------------

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

/** The unit and digits that suit a step of `wall` ns: every time of a chart is written in them. */
function scaleFor(wall) {
  const [unit, size] = UNITS.find(([name, ns]) => Math.abs(wall) >= (name === "s" ? 10 * ns : ns)) ?? UNITS[3];
  const whole = Math.abs(wall) / size;
  return { unit, size, digits: unit === "ns" ? 0 : whole >= 100 ? 1 : whole >= 10 ? 2 : 3 };
}

const scale = scaleFor(view.wall_ns);

/** `ns` in the report's unit, without its name; a value too small for it is written in its own unit. */
function inUnit(ns) {
  if (ns !== 0 && Math.abs(ns) < 0.5 * scale.size * 10 ** -scale.digits) return time(ns);
  return fixed(ns / scale.size, scale.digits);
}

/** `inUnit` with a sign. */
function signed(ns) {
  return (ns < 0 ? "−" : "+") + inUnit(Math.abs(ns));
}

/** A time in ns in the unit that suits it, with about `least` significant digits. */
function time(ns, least = 3) {
  const { unit, size } = scaleFor(ns);
  const value = ns / size;
  const digits = unit === "ns" ? 0 : Math.max(0, least - Math.floor(Math.log10(Math.abs(value) || 1)) - 1);
  return `${fixed(value, Math.min(digits, 3))} ${unit}`;
}

/** A number with `digits` decimals, thousands separators and a minus sign. */
function fixed(value, digits) {
  const [units, parts] = Math.abs(value).toFixed(digits).split(".");
  return (value < 0 ? "−" : "") + units.replace(/\B(?=(\d{3})+$)/g, ",") + (parts ? `.${parts}` : "");
}

const whole = (value) => fixed(value, 0);
const share = (part, all) => (all ? `${fixed((100 * part) / all, 1)} %` : "–");
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;

/** Round steps (1, 2, 5 × 10ⁿ) that put about `count` ticks on `span`. */
function tickStep(span, count) {
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((nice) => nice * power >= raw) * power;
}

// ---- colours ------------------------------------------------------------------------------------------------

const probe = document.body.appendChild(el("i", { hidden: true }));

const inks = new Map();
const darkWanted = matchMedia("(prefers-color-scheme: dark)");
darkWanted.addEventListener("change", () => inks.clear());

/** The colour of a style variable in the theme now shown, as a canvas wants it. */
function ink(variable) {
  if (!inks.has(variable)) {
    probe.style.color = `var(${variable})`;
    inks.set(variable, getComputedStyle(probe).color);
  }
  return inks.get(variable);
}

/** [red, green, blue] of a colour: `#rrggbb` or as the browser writes computed colours. */
function rgb(colour) {
  if (colour.startsWith("#")) return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}

/** Relative luminance of a colour, 0 to 1, as WCAG 2 defines it. */
function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

/** Contrast ratio of two colours, 1 to 21, as WCAG 2 defines it. */
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The colour that is the fraction `part` of the way between two colours. */
const mix = (from, to, part) => from.map((value, at) => Math.round(value + (to[at] - value) * part));

/** A colour with enough contrast to the card: moved towards the ink until its contrast is `least`. */
function tuned(colour, least = 1.6) {
  const safe = /^#[0-9a-f]{6}$/i.test(colour) ? rgb(colour) : [138, 143, 152];
  const card = rgb(ink("--card"));
  const text = rgb(ink("--ink"));
  const part = [0, 0.1, 0.2, 0.3, 0.4, 0.5].find((step) => contrast(mix(safe, text, step), card) >= least) ?? 0.6;
  return mix(safe, text, part);
}

const css = (triple) => `rgb(${triple.join(" ")})`;
const onto = (fill) => (contrast(fill, [20, 22, 26]) >= contrast(fill, [255, 255, 255]) ? "rgb(20 22 26)" : "#fff");

// ---- text that must fit --------------------------------------------------------------------------------------

const measurer = document.createElement("canvas").getContext("2d");
const FAMILY = getComputedStyle(document.body).fontFamily;
const [LABEL, STRONG, SMALL] = [`12.5px ${FAMILY}`, `600 12.5px ${FAMILY}`, `11px ${FAMILY}`];

/** Width in px of a text in a font. */
function textWidth(text, font = LABEL) {
  measurer.font = font;
  return measurer.measureText(text).width;
}

/** The text, cut at its end with an ellipsis to fit into `room` px; empty if nothing fits. */
function fitted(text, room, font) {
  if (textWidth(text, font) <= room) return text;
  let keep = Math.floor((text.length * room) / textWidth(text, font));
  while (keep > 0 && textWidth(text.slice(0, keep) + "…", font) > room) keep -= 1;
  return keep > 0 ? text.slice(0, keep).trimEnd() + "…" : "";
}

// ---- tooltip and announcements -------------------------------------------------------------------------------

const tip = document.getElementById("tip");

/** Shows lines next to a point of the window; the first is the heading. */
function showTip(lines, x, y) {
  tip.replaceChildren(...lines.filter(Boolean).map((line, at) => el(at ? "div" : "b", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
}

const hideTip = () => (tip.hidden = true);

/** Gives an element a tooltip on hover and on focus. */
function explain(element, lines) {
  element.addEventListener("pointermove", (event) => showTip(lines(), event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    if (element.matches(":focus-visible")) showTip(lines(), box.left, box.bottom - 12);
  });
  element.addEventListener("blur", hideTip);
  return element;
}

/** Announces a text to screen readers. */
const say = (text) => (document.getElementById("live").textContent = text);
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());

// ---- state ---------------------------------------------------------------------------------------------------

const state = { theme: "", from: null, to: null, rank: null, account: "", kind: "", q: "" };
const watchers = [];

/** Calls `watcher(changed names)` whenever the state changes. */
const watch = (watcher) => watchers.push(watcher);

/** The state in the address of the page, checked: theme, range of the timeline in ns, rank, account, kind, search text. */
function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const [from, to] = (hash.get("t") ?? "").split("-").map(Number);
  const rank = hash.get("rank");
  const theme = hash.get("theme");
  return {
    theme: ["light", "dark"].includes(theme) ? theme : "",
    from: from >= 0 && to > from ? from : null,
    to: from >= 0 && to > from ? to : null,
    rank: /^\d{1,9}$/.test(rank ?? "") ? Number(rank) : null,
    account: hash.get("account") ?? "",
    kind: hash.get("kind") ?? "",
    q: hash.get("q") ?? "",
  };
}

/** Applies a theme: `light`, `dark`, or empty for the system's. */
function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  inks.clear();
}

let writing = 0;

/** Writes the state into the address of the page, so that the link restores it. */
function writeHash() {
  writing = 0;
  const hash = new URLSearchParams();
  for (const name of ["theme", "account", "kind", "q"]) if (state[name]) hash.set(name, state[name]);
  if (state.rank !== null) hash.set("rank", state.rank);
  if (state.from !== null) hash.set("t", `${Math.round(state.from)}-${Math.round(state.to)}`);
  history.replaceState(null, "", `#${hash}`);
}

/** Changes the state and calls the watchers with the names that changed; writes the address unless `write` is false. */
function setState(change, { write = true } = {}) {
  const changed = Object.keys(change).filter((name) => change[name] !== state[name]);
  if (!changed.length) return;
  Object.assign(state, change);
  if (changed.includes("theme")) showTheme(state.theme);
  for (const watcher of watchers) watcher(changed);
  // Browsers refuse hundreds of address changes a minute, and a drag makes sixty a second.
  if (write && !writing) writing = setTimeout(writeHash, 200);
}
