// A run in progress: adds the events of the server to the page.

import { el, svg } from "./dom.js";
import { time, whole } from "./numbers.js";

/** A step as in the document `live-run`: `step` counts from 0, `attempt` restarts of the job.
 * @typedef {{step: number, wall_ns: number, loss?: number | null, attempt?: number}} Step */

const MOST = 20000;
const HEIGHT = 240;
const live = document.getElementById("live");
/** @type {Map<number, Step>} step number -> the step in its last attempt */
const steps = new Map();
const charts = [...live.querySelectorAll("[data-chart]")];
let drawing = 0;

const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));
const attemptOf = (step) => step.attempt ?? 0;
const show = (id, text) => (document.getElementById(id).textContent = text);

/** Draws the loss or the step time of all steps; restarts of the job are dashed lines. */
function draw(host) {
  const [at, title, label] = host.dataset.chart === "loss" ? ["loss", "Loss by step", loss] : ["wall_ns", "Step time by step", (ns) => time(ns, 5)];
  const points = [...steps.values()].filter((step) => Number.isFinite(step[at])).sort((a, b) => a.step - b.step);
  const [left, right, top, bottom] = [72, host.clientWidth - 12, 10, HEIGHT - 28];
  const chart = svg("svg", { width: host.clientWidth, height: HEIGHT, role: "img", "aria-label": title });
  host.replaceChildren(chart);
  if (!points.length) return;
  const values = points.map((step) => step[at]);
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const margin = (high - low || Math.abs(high) || 1) * 0.06;
  const [first, last] = [points[0].step, points[points.length - 1].step];
  const x = (step) => left + ((step - first) / Math.max(1, last - first)) * (right - left);
  const y = (value) => bottom - ((value - low + margin) / (high - low + 2 * margin)) * (bottom - top);
  for (const value of high > low ? [0, 1, 2, 3, 4].map((part) => low + ((high - low) * part) / 4) : [low]) {
    chart.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    chart.append(svg("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, label(value)));
  }
  for (const [step, anchor] of last > first ? [[first, "start"], [last, "end"]] : [[first, "start"]]) {
    chart.append(svg("text", { class: "tick", x: x(step), y: HEIGHT - 6, "text-anchor": anchor }, `step ${whole(Number(step) + 1)}`));
  }
  points.forEach((step, index) => {
    if (index && attemptOf(step) !== attemptOf(points[index - 1])) chart.append(svg("line", { class: "restart", x1: x(step.step), x2: x(step.step), y1: top, y2: bottom }));
  });
  const path = points.map((step) => `${x(step.step).toFixed(1)} ${y(step[at]).toFixed(1)}`).join("L");
  chart.append(svg("path", { class: "series", d: `M${path}` }));
  chart.append(svg("circle", { class: "newest", cx: x(last), cy: y(values[values.length - 1]), r: 3.5 }));
}

function redraw() {
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(() => charts.forEach(draw));
}

/** Adds a step; after a restart of the job, the steps that it repeats are dropped. */
function addStep(step) {
  const earlier = steps.get(step.step);
  if (earlier && attemptOf(step) > attemptOf(earlier)) for (const number of [...steps.keys()]) if (number > step.step) steps.delete(number);
  steps.set(step.step, step);
  if (steps.size > MOST) steps.delete(steps.keys().next().value);
}

/** Adds an update of the server: new steps, all incidents, the state. */
function add(update) {
  update.new_steps.forEach(addStep);
  if (update.last) {
    document.getElementById("live-wait").hidden = true;
    show("live-step", whole(update.last.step + 1));
    show("live-loss", loss(update.last.loss));
    show("live-time", time(update.last.wall_ns));
  }
  document.getElementById("live-incidents").replaceChildren(...update.incidents.map(({ time: at, summary }) => el("li", {}, `${at.slice(0, 19)} ${summary}`)));
  document.getElementById("live-state").replaceChildren(el("span", { class: `state ${update.state}` }, el("i", { "aria-hidden": "true" }), update.state));
  redraw();
}

const source = new EventSource(`/api/runs/${live.dataset.run}/events`);
source.addEventListener("update", (event) => add(JSON.parse(event.data)));
source.addEventListener("ended", () => {
  source.close();
  document.getElementById("live-ended").hidden = false;
});
new ResizeObserver(redraw).observe(live);
