// The segments of the critical path: as shapes on the timeline, and summed by account.

import { firstAfter } from "./lanes.js";

const NO_ACCOUNT = { latency: "Launch latency", unexplained: "Delays without a recorded cause" };

/**
 * The path in [from, to) ns as shapes in px, neighbours that touch joined: {boxes: {row, left, right} of ops, waits: the same of latency and
 * delays, links: [x, row, x, row] between rows}. `x(ns)`: a position; `rowOf(number of a lane)`: its row, null if none is shown; `isWait(share)`.
 */
export function shapePath(path, from, to, x, rowOf, isWait) {
  const shapes = { boxes: [], waits: [], links: [] };
  const last = new Map();
  const linked = new Map();
  let before = null;
  for (let at = firstAfter(path, from); at < path.starts.length && path.starts[at] < to; at += 1) {
    const row = rowOf(path.lanes[at]);
    if (!row) continue;
    const [left, right] = [x(Math.max(from, path.starts[at])), x(Math.min(to, path.ends[at]))];
    const list = isWait(path.kinds[at]) ? shapes.waits : shapes.boxes;
    const open = last.get(row);
    // A shape takes in what is of the other sort if that ends within a px of the shape's own end.
    if (open && (open.list === list ? left - open.shape.right < 1 : right - open.own < 1)) {
      open.shape.right = Math.max(open.shape.right, right);
      if (open.list === list) open.own = open.shape.right;
    } else {
      const shape = { row, left: Math.max(left, open?.shape.right ?? left), right };
      list.push(shape);
      last.set(row, { list, shape, own: right });
    }
    if (before && before.row !== row && path.starts[at] === before.ns) {
      const others = linked.get(row) ?? new Map();
      linked.set(row, others);
      if (!(left - others.get(before.row) < 2)) {
        others.set(before.row, left);
        shapes.links.push([before.right, before.row, left, row]);
      }
    }
    before = { row, right, ns: path.ends[at] };
  }
  return shapes;
}

/**
 * The accounts of the path and of the mean ledger, the longest on the path first: {account, label, resources, path, ledger, range}. `path`, `ledger`:
 * ns per step; `range`: ns of the path in `times`, which has the ns of each share.
 */
export function pathRows({ shares, steps }, table, times) {
  const rows = new Map();
  const row = (key, label) => rows.get(key) ?? rows.set(key, { account: key, label, resources: [], path: 0, ledger: 0, range: 0 }).get(key);
  shares.forEach(([account, label, resource, ns], number) => {
    const own = row(account || resource, label || NO_ACCOUNT[resource] || resource);
    own.path += ns / steps;
    own.range += times[number];
    own.resources.push(resource);
  });
  for (const [account, label, , ns] of table) row(account, label).ledger += ns;
  return [...rows.values()].sort((a, b) => b.path - a.path || b.ledger - a.ledger);
}
