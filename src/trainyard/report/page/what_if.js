// What if: sliders and switches, and the step that a replay predicts for them.

import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { inUnit, scale, signed, view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { fixed, plural, share, time, whole } from "./numbers.js";
import { chartKeys, dressed } from "./plot.js";
import { setState, state, watch } from "./state.js";
import { fitted, STRONG, textWidth } from "./text.js";
import { explain } from "./tooltip.js";
import { axis } from "./waterfall.js";
import { changeOf, changesOf, isSwitch, replayedSpeeds, settled, speedsOf, stepAt } from "./what_if_grid.js";

const [WHATIF_ROW, WHATIF_BAR] = [34, 9];

/** Draws the section "What if" from `view.what_if`; nothing without it. */
export function whatIf() {
  const data = view.what_if;
  if (!data) return;
  if (data.not_replayed) {
    const card = section("whatif", "What if", "the step with changes, predicted by replaying its dependencies", { nav: "What if" });
    card.append(el("p", { class: "empty" }, `Nothing was replayed for this page. ${data.not_replayed}`), commandLine("Replays every combination", data.full_command), commandLine("Predicts single changes", `${data.command} --change CHANGE`), leverTexts(data));
    return;
  }
  const now = () => stepAt(data, speedsOf(data, state.whatIf));
  const card = section("whatif", "What if", data.assumes, {
    nav: "What if",
    csv: () => saveCsv("what-if", gridRows(data)),
    png: () => saveSvg("what-if", host.firstChild),
    svg: () => saveDrawing("what-if", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const verdict = el("div", { class: "verdict", role: "status", "aria-live": "polite" });
  const keys = chartKeys("Signs", [["Measured", dressed("key-was")], ["Predicted", dressed("key-now")]]);
  card.append(el("div", { class: "whatif" }, levers(data), el("div", { class: "answer" }, verdict, keys, host)), extent(data), details("All replayed steps as a table", () => gridRows(data)));
  const draw = () => host.replaceChildren(now().how === "missing" ? el("p", { class: "empty" }, "No step was replayed for this combination.") : drawSteps(host.clientWidth, data, now()));
  const answer = () => {
    verdict.replaceChildren(...verdictOf(data, now()));
    card.classList.toggle("unchanged", !state.whatIf);
  };
  redrawn(host, draw);
  watch((changed) => {
    if (!changed.includes("whatIf")) return;
    answer();
    draw();
  });
  answer();
}

// ---- controls -----------------------------------------------------------------------------------------------

/** A button that sets the sliders to the change of a finding alone; null if no slider has it. */
export function whatIfButton(change) {
  const at = view.what_if?.levers.findIndex((lever) => changeOf(lever, lever.speeds[1]) === change?.text) ?? -1;
  if (at < 0 || view.what_if.not_replayed) return null;
  const speeds = view.what_if.levers.map((lever, other) => (other === at ? lever.speeds[1] : 1));
  const show = () => {
    setSpeeds(view.what_if, speeds);
    document.getElementById("whatif").scrollIntoView({ block: "start" });
  };
  return el("button", { type: "button", class: "take", onclick: show }, "Show in What if");
}

/** Sets the sliders to these speeds. */
const setSpeeds = (data, speeds) => setState({ whatIf: changesOf(data, speeds).join(",") });

/** The controls: hypothetical devices as buttons, then a slider or switch for each lever. */
function levers(data) {
  const replayed = data.devices.filter((device) => stepAt(data, device.settings.map((setting, at) => data.levers[at].speeds[setting])).how === "replayed");
  const devices = el("div", { class: "devices", role: "group", "aria-label": "Hypothetical devices" },
    deviceButton(data, "As measured", data.levers.map(() => 0)), ...replayed.map(({ label, settings }) => deviceButton(data, label, settings)));
  return el("form", { class: "levers", "aria-label": "What-if changes", onsubmit: (event) => event.preventDefault() }, devices, ...data.levers.map((lever, at) => leverControl(data, lever, at)));
}

/** A button that sets all levers. */
function deviceButton(data, label, settings) {
  const speeds = settings.map((setting, at) => data.levers[at].speeds[setting]);
  const button = el("button", { type: "button", onclick: () => setSpeeds(data, speeds) }, label);
  const show = () => button.setAttribute("aria-pressed", String(changesOf(data, speeds).join(",") === state.whatIf));
  watch(show);
  show();
  return button;
}

/** The slider or switch of a lever, with what it assumes. */
function leverControl(data, lever, at) {
  const id = `lever${at}`;
  const about = el("p", { class: "assumes", id: `${id}-assumes` }, lever.unavailable || lever.assumes);
  const most = Math.max(...replayedSpeeds(data, lever));
  const common = { id, "aria-describedby": `${id}-assumes`, disabled: Boolean(lever.unavailable) };
  const input = /** @type {HTMLInputElement} */ (isSwitch(lever)
    ? el("input", { type: "checkbox", ...common })
    : el("input", { type: "range", min: 1, max: Math.max(most, 1.1), step: 0.1, list: `${id}-points`, ...common, disabled: common.disabled || most === 1 }));
  const output = el("output", { for: id });
  const show = () => {
    const speed = speedsOf(data, state.whatIf)[at];
    input.checked = speed === 0;
    if (!isSwitch(lever)) input.value = String(speed);
    output.textContent = lever.unavailable ? "not available" : isSwitch(lever) ? (speed ? "as measured" : "applied") : speed === 1 ? "as measured" : `${Number(speed.toFixed(2))}× as fast`;
    if (!isSwitch(lever)) input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    const speeds = speedsOf(data, state.whatIf);
    speeds[at] = isSwitch(lever) ? Number(!input.checked) : Number(input.value);
    setSpeeds(data, settled(data, speeds, at));
  });
  watch((changed) => changed.includes("whatIf") && show());
  show();
  const points = el("datalist", { id: `${id}-points` }, ...replayedSpeeds(data, lever).map((speed) => el("option", { value: speed })));
  const head = el("div", { class: "lever-head" }, isSwitch(lever) ? input : null, el("label", { for: id }, lever.label), output);
  return el("div", { class: lever.unavailable ? "lever off" : "lever" }, head, ...(isSwitch(lever) ? [] : [input, points]), about);
}

/** What each lever assumes, as a list. */
const leverTexts = (data) => el("ul", { class: "limits" }, ...data.levers.map((lever) => el("li", {}, el("b", {}, lever.label), `: ${lever.assumes}`)));

/** A command to copy, after what it does. */
const commandLine = (does, command) => el("p", { class: "command" }, `${does}: `, el("code", {}, command));

/** How many combinations were replayed, and the command that replays all. */
function extent(data) {
  const booked = data.points.filter(({ ns }) => ns).length;
  const lines = [el("p", {}, `${plural(data.points.length, "replay")} of ${plural(data.combinations, "combination")}, ${booked} of them with a ledger. Between two replays along one slider, values are interpolated; other combinations are not estimated.`)];
  if (booked < data.combinations) lines.push(commandLine("Replays every combination with its ledger", data.full_command));
  return el("div", { class: "small" }, ...lines);
}

// ---- the answer ---------------------------------------------------------------------------------------------

/** A change in percent of the step, with its sign. */
const changeText = (percent) => (Math.abs(percent) < 0.05 ? "changed by less than 0.1 %" : `${percent < 0 ? "−" : "+"}${fixed(Math.abs(percent), 1)} %`);

/** The predicted step in words: its time, the time recovered with its interval, and how both were obtained. */
function verdictOf(data, step) {
  const changes = changesOf(data, speedsOf(data, state.whatIf));
  const does = { missing: "Predicts it", interpolated: "Replays exactly this", replayed: "The same by command" };
  const command = commandLine(does[step.how], [data.command, ...changes.map((change) => `--change ${change}`)].join(" "));
  if (step.how === "missing") return [el("p", { class: "predicted" }, el("b", {}, "not computed")), el("p", {}, "This combination was not replayed for the page."), command];
  const change = data.wall_ns ? (100 * (step.wall_ns - data.wall_ns)) / data.wall_ns : 0;
  const tone = step.wall_ns < data.wall_ns ? "better" : step.wall_ns > data.wall_ns ? "worse" : "";
  const head = el("p", { class: "predicted" }, el("b", {}, inUnit(step.wall_ns)), ` ${scale.unit} a step `, step.how === "measured" ? "as measured" : el("span", { class: tone }, changeText(change)));
  if (step.how === "measured") return [head, el("p", {}, "Move a slider to see the step that a replay predicts.")];
  const ledger = step.ns ? null : el("p", {}, "The page has the ledgers of some replays only; the command prints that of this step.");
  return [head, el("p", {}, certainty(data, step)), ledger, command].filter(Boolean);
}

/** The recovered time with its interval; `cannot tell` where the replay has none. */
function certainty(data, step) {
  const recovered = step.recovered_ns >= 0 ? `${time(step.recovered_ns)} recovered` : `${time(-step.recovered_ns)} longer: the bounds of the step moved, or other ranks wait longer`;
  if (step.how === "interpolated") return `${recovered}, interpolated between the replays at ${step.between[0]}× and ${step.between[1]}×; no interval.`;
  if (!step.interval_ns) return `${recovered}. Cannot tell how much that varies: ${plural(data.steps, "full step")} compared, an interval takes two.`;
  const [low, high] = step.interval_ns;
  const zero = low < 0 && high > 0 ? " Cannot tell it from no change." : "";
  return `${recovered}, 80 % interval ${time(low)} to ${time(high)} over ${plural(data.steps, "step")}.${zero}`;
}

/** Every replayed step as a row, after a row of headings; then the accounts. */
function gridRows(data) {
  const names = data.accounts.map(([account, label]) => account || label);
  const heads = ["changes", "step_ns", "recovered_ns", "low_ns", "high_ns", ...names];
  const measured = ["measured", data.wall_ns, 0, "", "", ...data.ns];
  const rows = data.points.map((point) => [point.changes.join(" "), point.wall_ns, point.recovered_ns, point.interval_ns?.[0] ?? "", point.interval_ns?.[1] ?? "", ...(point.ns ?? data.ns.map(() => ""))]);
  return [heads, measured, ...rows];
}

/** The measured ledger and the predicted one as two waterfalls in the same rows. */
function drawSteps(width, data, step) {
  const ns = step.ns;
  const rows = ns ? data.accounts.map(([account, label, colour], at) => ({ account, label, colour, was: data.ns[at], now: ns[at] })).filter(({ was, now }) => was || now) : [];
  const narrow = width < 520;
  const labels = Math.max(60, ...rows.map(({ label }) => textWidth(label, STRONG)));
  const left = Math.min(Math.ceil(labels) + 14, Math.floor(width * (narrow ? 0.36 : 0.34)));
  const right = width - (narrow ? 72 : 176);
  const reach = Math.max(1, data.wall_ns, step.wall_ns);
  const x = (ns) => left + (ns * (right - left)) / reach;
  const plan = { left, right, reach, x, width, narrow };
  const bottom = 4 + WHATIF_ROW * (rows.length + 1);
  const chart = svg("svg", { width, height: bottom + 24, role: "list", "aria-label": "Step by account, measured above and predicted below" });
  chart.append(axis(plan, bottom));
  let [was, now] = [0, 0];
  rows.forEach((row, at) => {
    chart.append(accountRow(plan, row, 4 + at * WHATIF_ROW, was, now));
    [was, now] = [was + row.was, now + row.now];
  });
  chart.append(accountRow(plan, { account: "", label: "Step", colour: "", was: data.wall_ns, now: step.wall_ns }, 4 + rows.length * WHATIF_ROW, 0, 0));
  return chart;
}

/** A row: the measured bar, below it the predicted one, and the change. */
function accountRow({ left, right, x, width, narrow }, { account, label, colour, was, now }, top, wasStart, nowStart) {
  const total = !colour;
  const fill = total ? null : css(tuned(colour));
  const lines = () => [label, `measured ${whole(was)} ns · predicted ${whole(now)} ns`, `${signed(now - was)} ${scale.unit} · ${share(now - was, view.what_if.wall_ns)} of the measured step`, account];
  const group = svg("g", { class: `bar ${total ? "total" : "step"}`, tabindex: 0, role: "listitem", "aria-label": `${label}: measured ${whole(was)} ns, predicted ${whole(now)} ns` });
  const bar = (name, start, ns, y) => svg("rect", { class: `body ${name}`, x: x(start), y, width: Math.max(ns ? 1.5 : 0, x(ns) - x(0)), height: WHATIF_BAR, rx: 2, fill });
  group.append(
    svg("rect", { class: "hit", x: 0, y: top, width, height: WHATIF_ROW, rx: 4 }),
    svg("text", { class: "label", x: left - 12, y: top + WHATIF_ROW / 2 + 4, "text-anchor": "end" }, fitted(label, left - 14, total ? STRONG : undefined)),
    bar("was", wasStart, was, top + 6), bar("now", nowStart, now, top + 7 + WHATIF_BAR),
  );
  const change = now === was ? "=" : signed(now - was);
  const tone = Math.abs(now - was) < 0.0005 * view.what_if.wall_ns ? "same" : now < was ? "gain" : "loss";
  if (!narrow) group.append(svg("text", { class: "was-now", x: right + 12, y: top + WHATIF_ROW / 2 + 4 }, `${inUnit(was)} → ${inUnit(now)}`));
  group.append(svg("text", { class: `value ${tone}`, x: width, y: top + WHATIF_ROW / 2 + 4, "text-anchor": "end" }, change));
  return explain(group, lines);
}
