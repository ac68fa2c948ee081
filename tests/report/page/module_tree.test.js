// The tree of modules of a comparison of records.

import assert from "node:assert/strict";
import { test } from "node:test";

import { around, moduleTree, openAtFirst, subtree } from "../../../src/trainyard/report/page/module_tree.js";

const modules = (paths, fault = "") => paths.map((module) => ({ module, is_first_fault: module === fault }));
const shape = (nodes) => nodes.map(({ label, module, children }) => [label, module, shape(children)]);

test("modules keep their order, and mere prefixes with one child are joined", () => {
  const roots = moduleTree(modules(["", "net", "net.layers.0", "net.layers.0.norm", "net.layers.1", "net.head.out"]));
  assert.deepEqual(shape(roots), [["(no module)", 0, []], ["net", 1, [["layers", null, [["0", 2, [["norm", 3, []]]], ["1", 4, []]]], ["head.out", 5, []]]]]);
  assert.deepEqual(subtree(roots[1]), [1, 2, 3, 4, 5]);
  assert.deepEqual(roots.map((node) => node.modules), [1, 5]);
});

test("each module is in the tree once, whatever its path", () => {
  const paths = ["a..b", ".", "a", "a.a.a", "__proto__.x", "constructor", "a.b.c.d", "x".repeat(2000)];
  assert.deepEqual(moduleTree(modules(paths)).flatMap(subtree).sort((a, b) => a - b), paths.map((_, at) => at));
});

test("at first, nodes are open down to the first fault, and others as far as there is room", () => {
  const paths = ["net", ...Array.from({ length: 30 }, (_, layer) => [`net.${layer}`, `net.${layer}.a`, `net.${layer}.b`]).flat()];
  const roots = moduleTree(modules(paths, "net.17.b"));
  const open = (most) => [...openAtFirst(roots, most)].map(({ path }) => path);
  assert.deepEqual(open(40), ["net", "net.17"]);
  assert.deepEqual(open(10), ["net", "net.17"]);
  assert.equal(open(100).length, 31);
});

test("items around the wanted one are shown", () => {
  const items = Array.from({ length: 100 }, (_, at) => at);
  assert.deepEqual(around(items, (item) => item === 50, 4), [48, 49, 50, 51]);
  assert.deepEqual(around(items, (item) => item === 99, 3), [97, 98, 99]);
  assert.deepEqual(around(items, () => false, 2), [0, 1]);
  assert.deepEqual(around([1, 2], (item) => item === 2, 5), [1, 2]);
});
