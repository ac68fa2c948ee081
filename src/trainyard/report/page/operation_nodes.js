// The changed operations as the nodes of a tree.

/** The tree of the changes: {label, change or null, children, ns: the sums of before, after and change}. */
export function treeOf(changes) {
  const root = { label: "", change: null, children: new Map() };
  for (const change of changes) {
    let node = root;
    for (const label of change.path) {
      if (!node.children.has(label)) node.children.set(label, { label, change: null, children: new Map() });
      node = node.children.get(label);
    }
    // Two changes may have one path, as a removed and an added operation of the same name.
    if (node.change) node.children.set(`${change.match} ${node.children.size}`, { label: change.path.at(-1), change, children: new Map() });
    else node.change = change;
  }
  return [...root.children.values()].map(summed).sort(byChange);
}

const byChange = (a, b) => Math.abs(b.ns[2]) - Math.abs(a.ns[2]);

/** A node with the sums of its subtree; chains of nodes without a change of their own become one node. */
function summed(node) {
  const children = [...node.children.values()].map(summed).sort(byChange);
  const own = node.change ? [node.change.before_ns, node.change.after_ns, node.change.ns] : [0, 0, 0];
  const ns = own.map((value, at) => children.reduce((sum, child) => sum + child.ns[at], value));
  if (!node.change && children.length === 1) return { ...children[0], label: `${node.label} / ${children[0].label}` };
  return { label: node.label, change: node.change, children, ns };
}
