// The loads of experts by layer and by step.

import assert from "node:assert/strict";
import { test } from "node:test";

import { fullLoad, imbalance, layerMatrix, shade, stepMatrix } from "../../../src/trainyard/report/page/expert_matrix.js";

const DATA = { layers: ["a", "b"], experts: 2, steps: [1, 11], tokens: [[[3, 1], [2, 2]], [[0, 4], [1, 3]]] };

test("layers of a step, of all steps, and steps of a layer", () => {
  assert.deepEqual(layerMatrix(DATA, 11), { by: "layer", labels: ["a", "b"], tokens: [[0, 4], [1, 3]], loads: [[0, 2], [0.5, 1.5]] });
  assert.deepEqual(layerMatrix(DATA), { by: "layer", labels: ["a", "b"], tokens: [[3, 5], [3, 5]], loads: [[0.75, 1.25], [0.75, 1.25]] });
  assert.deepEqual(stepMatrix(DATA, "b"), { by: "step", labels: ["step 1", "step 11"], tokens: [[2, 2], [1, 3]], loads: [[1, 1], [0.5, 1.5]] });
  assert.equal(imbalance([0.5, 1.5]), 1.5);
});

test("shades go from no tokens over the mean to the full load", () => {
  const full = fullLoad({ loads: [[0.2, 0.5, 2.3, 3.4], [1, 1, 1, 1]] });
  assert.equal(full, 3);
  assert.equal(fullLoad({ loads: [[0.9, 1.1]] }), 2);
  assert.deepEqual([0, 0.5, 1, 2, 3, 99].map((load) => shade(load, full)), [-1, -0.5, 0, 0.5, 1, 1]);
});
