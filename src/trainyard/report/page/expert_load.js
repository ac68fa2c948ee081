// Expert load: how the routers spread tokens over experts, as a heat map of layers or of steps by expert.

import { ink } from "./colours.js";
import { css, mix, onto, rgb } from "./contrast.js";
import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { fullLoad, imbalance, layerMatrix, shade, stepMatrix } from "./expert_matrix.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { fixed, plural, share, whole } from "./numbers.js";
import { facts } from "./tables.js";
import { fitted, SMALL, textWidth } from "./text.js";
import { hideTip, say, showTip } from "./tooltip.js";

const [TALLEST, HIGHEST_ROW, LOWEST_ROW, MAP_TOP, SHADES] = [460, 22, 3, 26, 40];

/** The table of the layers, which is drawn below the chart; undefined without one. */
export const expertTable = () => view.tables.find(({ title }) => title === view.charts?.experts?.table);

/** Draws the section "Expert load" and the table of its layers; nothing without data. */
export function expertLoad(data) {
  if (!data) return;
  const note = `tokens of each expert by the mean of its layer, over the global batch; ${plural(data.layers.length, "layer")} of ${plural(data.experts, "expert")}, ${plural(data.steps.length, "recorded step")}`;
  const card = section("experts", "Expert load", note, {
    nav: "Experts", csv: () => saveCsv("expert-load", expertRows(data)), png: () => saveSvg("expert-load", host.firstChild), svg: () => saveDrawing("expert-load", host.firstChild),
  });
  const host = el("div", { class: "chart heat", tabindex: 0, role: "group", "aria-label": "Heat map of the load of experts. Arrow keys move. The table below holds the numbers." });
  const cursor = { row: 0, column: 0 };
  const legend = el("div", { class: "scale" });
  let matrix = layerMatrix(data);
  const draw = () => host.replaceChildren(drawLoads(matrix, host.clientWidth, document.activeElement === host ? cursor : null));
  const choose = (chosen) => {
    matrix = chosen;
    Object.assign(cursor, { row: 0, column: 0 });
    legend.replaceChildren("no tokens", el("span", { class: "ramp", "aria-hidden": "true" }), `${fullLoad(matrix)} × the mean or more; the middle is the mean`);
    if (host.firstChild) draw();
  };
  card.append(matrixChoosers(data, choose), host, legend, details("The loads as a table", () => loadRows(matrix)));
  choose(matrix);
  host.addEventListener("keydown", (event) => moveOverLoads(event, matrix, cursor, draw));
  host.addEventListener("focus", draw);
  host.addEventListener("blur", () => { hideTip(); draw(); });
  host.addEventListener("pointermove", (event) => pointAtLoad(event, matrix, host));
  host.addEventListener("pointerleave", hideTip);
  redrawn(host, draw);
  const table = expertTable();
  if (table) facts(table, view.tables.indexOf(table));
}

/** All counts as rows for the CSV: a row of headings, then one row for each step, layer and expert. */
function expertRows({ layers, steps, tokens }) {
  const rows = tokens.flatMap((ofStep, at) => ofStep.flatMap((counts, layer) => counts.map((count, expert) => [steps[at], layers[layer], expert, count])));
  return [["step", "layer", "expert", "tokens"], ...rows];
}

/** The shown loads as rows for the table: a row of headings, then one row for each layer or step. */
function loadRows({ by, labels, loads }) {
  return [[by, "max/mean", ...loads[0].map((_, expert) => `expert ${expert}`)], ...labels.map((label, row) => [label, fixed(imbalance(loads[row]), 2), ...loads[row].map((load) => fixed(load, 2))])];
}

/** Buttons for the rows of the map, and the choice of the step or the layer that it shows. `choose`: called with the matrix. */
function matrixChoosers(data, choose) {
  const select = el("select");
  const label = el("span");
  const fill = (byStep) => {
    label.textContent = byStep ? "Layer" : "Step";
    const options = byStep ? data.layers : ["all recorded", ...data.steps.map(String)];
    select.replaceChildren(...options.map((name) => el("option", { value: name }, name)));
    shown();
  };
  const byStep = () => buttons[1].getAttribute("aria-pressed") === "true";
  const shown = () => choose(byStep() ? stepMatrix(data, select.value) : layerMatrix(data, select.selectedIndex ? Number(select.value) : null));
  const press = (at) => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === at)));
    fill(at === 1);
  };
  const buttons = ["Layer × expert", "Step × expert"].map((name, at) => el("button", { type: "button", class: "more", "aria-pressed": String(!at), onclick: () => press(at) }, name));
  select.addEventListener("change", shown);
  fill(false);
  return el("div", { class: "choosers" }, ...(data.steps.length > 1 ? buttons : []), el("label", {}, label, " ", select));
}

/** Sizes in px of the map: space for labels, width and height of a cell. */
function loadPlan({ labels, loads }, width) {
  const high = Math.max(LOWEST_ROW, Math.min(HIGHEST_ROW, TALLEST / labels.length));
  const left = Math.min(Math.ceil(Math.max(...labels.map((label) => textWidth(label, SMALL)))) + 14, Math.floor(width * 0.3));
  const right = 74;
  return { left, high, right, wide: (width - left - right) / loads[0].length };
}

/** The map as an SVG element. `cursor`: {row, column} of the keyboard's cell, null if it is not drawn. */
function drawLoads(matrix, width, cursor) {
  const { labels, loads } = matrix;
  const plan = loadPlan(matrix, width);
  const { left, high, wide } = plan;
  const end = left + wide * loads[0].length;
  const chart = svg("svg", { width, height: MAP_TOP + labels.length * high + 22, "aria-hidden": "true" });
  chart.append(...loadCells(matrix, plan));
  chart.append(svg("text", { class: "tick", x: end + 8, y: MAP_TOP - 8 }, "max/mean"));
  let lowest = -99;
  labels.forEach((label, row) => {
    const y = MAP_TOP + (row + 0.5) * high + 4;
    if (y < lowest + 12) return;
    lowest = y;
    chart.append(svg("text", { class: "tick", x: left - 8, y, "text-anchor": "end" }, fitted(label, left - 12, SMALL)));
    chart.append(svg("text", { class: "tick", x: end + 8, y }, fixed(imbalance(loads[row]), 2)));
  });
  const every = Math.max(1, Math.ceil((textWidth(whole(loads[0].length), SMALL) + 10) / wide));
  loads[0].forEach((_, expert) => expert % every || chart.append(svg("text", { class: "tick", x: left + (expert + 0.5) * wide, y: MAP_TOP - 8, "text-anchor": "middle" }, String(expert))));
  chart.append(svg("text", { class: "tick", x: end, y: MAP_TOP + labels.length * high + 17, "text-anchor": "end" }, "expert"));
  if (cursor) chart.append(svg("rect", { class: "cursor", x: left + cursor.column * wide, y: MAP_TOP + cursor.row * high, width: Math.max(4, wide), height: Math.max(4, high), rx: 2 }));
  return chart;
}

/** The cells: one path for each shade, so that thousands of cells are few elements; and their loads if they fit. */
function loadCells(matrix, { left, high, wide }) {
  const full = fullLoad(matrix);
  const gap = wide > 5 && high > 5 ? 1 : 0;
  const paths = new Map();
  const numbers = [];
  matrix.loads.forEach((loads, row) => loads.forEach((load, column) => {
    const part = Math.round(shade(load, full) * SHADES) / SHADES;
    const [x, y] = [left + column * wide, MAP_TOP + row * high];
    paths.set(part, `${paths.get(part) ?? ""}M${x.toFixed(2)} ${y.toFixed(2)}h${(wide - gap).toFixed(2)}v${(high - gap).toFixed(2)}h${(gap - wide).toFixed(2)}z`);
    if (wide < 34 || high < 15) return;
    const number = svg("text", { class: "told", x: x + wide / 2, y: y + high / 2 + 3.5, "text-anchor": "middle" }, fixed(load, 2));
    number.style.fill = onto(loadColour(part));
    numbers.push(number);
  }));
  return [...[...paths].map(([part, d]) => svg("path", { class: "cell-shade", d, fill: css(loadColour(part)) })), ...numbers];
}

/** The colour of a shade from -1 to 1. */
const loadColour = (part) => mix(rgb(ink("--heat-mid")), rgb(ink(part < 0 ? "--heat-fast" : "--heat-slow")), Math.abs(part) ** 0.8);

/** The lines of a cell's tooltip. */
function loadLines({ labels, tokens, loads }, row, column) {
  const sum = tokens[row].reduce((total, count) => total + count, 0);
  return [`expert ${column} · ${labels[row]}`, `${whole(tokens[row][column])} tokens, ${share(tokens[row][column], sum)} of the row`, `${fixed(loads[row][column], 2)} × the mean`];
}

/** Shows the tooltip of the cell below the pointer. */
function pointAtLoad(event, matrix, host) {
  const box = host.getBoundingClientRect();
  const { left, high, wide } = loadPlan(matrix, host.clientWidth);
  const [column, row] = [Math.floor((event.clientX - box.left - left) / wide), Math.floor((event.clientY - box.top - MAP_TOP) / high)];
  if (matrix.loads[row]?.[column] === undefined) hideTip();
  else showTip(loadLines(matrix, row, column), event.clientX, event.clientY);
}

/** Handles arrow keys: moves `cursor`, {row, column}, and tells its cell. */
function moveOverLoads(event, matrix, cursor, draw) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step) return;
  event.preventDefault();
  cursor.row = Math.max(0, Math.min(matrix.labels.length - 1, cursor.row + step[0]));
  cursor.column = Math.max(0, Math.min(matrix.loads[0].length - 1, cursor.column + step[1]));
  draw();
  const box = event.currentTarget.querySelector(".cursor").getBoundingClientRect();
  showTip(loadLines(matrix, cursor.row, cursor.column), box.left, box.top);
  say(loadLines(matrix, cursor.row, cursor.column).join(", "));
}
