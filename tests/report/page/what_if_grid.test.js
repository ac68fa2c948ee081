// The grid of replays: replayed points are shown as they are, and nothing is estimated beyond one slider.

import assert from "node:assert/strict";
import { test } from "node:test";

import { changeOf, changesOf, replayedSpeeds, settled, speedsOf, stepAt } from "../../../src/trainyard/report/page/what_if_grid.js";

const point = (settings, ns, changes = ["x"]) => ({ settings, changes, ns, wall_ns: ns[0] + ns[1], recovered_ns: 100 - ns[0] - ns[1], interval_ns: [1, 2] });
const section = {
  levers: [
    { key: "network", speeds: [1, 2, 4], unavailable: "" },
    { key: "compute/matmul", speeds: [1, 2, 4], unavailable: "" },
    { key: "no-stragglers", speeds: [1, 0], unavailable: "" },
    { key: "memory", speeds: [1, 2, 4], unavailable: "no such work" },
  ],
  order: ["no-stragglers", "network", "memory", "compute/matmul"],
  wall_ns: 100,
  ns: [60, 40],
  points: [point([1, 0, 0, 0], [60, 20]), point([2, 0, 0, 0], [60, 10]), point([0, 1, 0, 0], [31, 40]), point([1, 0, 1, 0], [50, 20])],
};

test("a replayed point is shown exactly, with its interval", () => {
  const step = stepAt(section, [2, 1, 1, 1]);
  assert.equal(step.how, "replayed");
  assert.deepEqual([step.wall_ns, step.ns, step.interval_ns], [80, [60, 20], [1, 2]]);
  assert.equal(stepAt(section, [2, 1, 0, 1]).wall_ns, 70);
});

test("without changes the measured step is shown", () => {
  const step = stepAt(section, [1, 1, 1, 1]);
  assert.deepEqual([step.how, step.wall_ns, step.ns], ["measured", 100, [60, 40]]);
});

test("between two replays along one slider, accounts are interpolated in the remaining time and add up", () => {
  // 1/speed: 1, 3/4, 1/2: halfway between the measured step and twice the speed.
  const step = stepAt(section, [4 / 3, 1, 1, 1]);
  assert.deepEqual([step.how, step.ns, step.wall_ns, step.recovered_ns, step.interval_ns], ["interpolated", [60, 30], 90, 10, null]);
  for (let speed = 1.05; speed < 4; speed += 0.1) {
    const between = stepAt(section, [speed, 1, 1, 1]);
    assert.equal(between.wall_ns, between.ns[0] + between.ns[1]);
    assert.ok(between.wall_ns <= 100 && between.wall_ns >= 70, `${speed}`);
  }
});

test("combinations that were not replayed are not estimated", () => {
  assert.equal(stepAt(section, [2, 2, 1, 1]).how, "missing");
  assert.equal(stepAt(section, [1.5, 1.5, 1, 1]).how, "missing");
  assert.equal(stepAt(section, [1.5, 2, 1, 1]).how, "missing");
  assert.equal(stepAt(section, [8, 1, 1, 1]).how, "missing");
});

test("the state in the address describes the sliders, and changes are in the order of the replay", () => {
  const speeds = [1.5, 2, 0, 1];
  const changes = changesOf(section, speeds);
  assert.deepEqual(changes, ["no-stragglers", "network=1.5x", "compute/matmul=2x"]);
  assert.deepEqual(speedsOf(section, changes.join(",")), speeds);
});

test("hostile and unknown text in the address leaves the levers as measured", () => {
  for (const text of ["", "network=1e9x", "network=-2x", "network=NaNx", "memory=2x", "<img src=x>", "network", "=,=,,", "__proto__=2x"]) {
    assert.deepEqual(speedsOf(section, text), [1, 1, 1, 1], text);
  }
});

test("sliders reach the speeds that were replayed", () => {
  assert.deepEqual(replayedSpeeds(section, section.levers[0]), [1, 2, 4]);
  assert.deepEqual(replayedSpeeds(section, section.levers[1]), [1, 2]);
  assert.deepEqual(replayedSpeeds(section, section.levers[3]), [1]);
});

test("only the slider that moves may stand between replays", () => {
  assert.deepEqual(settled(section, [1.9, 1.2, 0, 1], 1), [2, 1.2, 0, 1]);
});

test("a switch with a value is its change, and excludes the switch that includes it", () => {
  const late = { key: "rank:7", value: "typical", speeds: [1, 0], unavailable: "" };
  const all = { key: "no-stragglers", speeds: [1, 0], unavailable: "", includes: "rank:7" };
  const both = { ...section, levers: [late, all, section.levers[0]], order: ["rank:7", "no-stragglers", "network"], points: [point([1, 0, 0], [50, 20]), point([0, 1, 0], [40, 20]), point([0, 0, 1], [60, 20])] };
  assert.equal(changeOf(late, 0), "rank:7=typical");
  assert.deepEqual(speedsOf(both, "rank:7=typical,network=2x"), [0, 1, 2]);
  assert.deepEqual(changesOf(both, [0, 1, 2]), ["rank:7=typical", "network=2x"]);
  assert.deepEqual(settled(both, [0, 0, 2], 1), [1, 0, 2]);
  assert.deepEqual(settled(both, [0, 0, 2], 0), [0, 1, 2]);
  assert.deepEqual(settled(both, [0, 1, 2], 1), [0, 1, 2]);
});
