// Modules as a tree by their paths, in order of execution.

/**
 * The roots of the tree of `modules` ({module: path, is_first_fault}). A node: {label, path, module (index, or null for a mere prefix),
 * first (whether the first fault is in its subtree), modules (number of modules of its subtree), children}.
 */
export function moduleTree(modules) {
  const root = { label: "", path: "", module: null, children: [] };
  const nodes = new Map();
  modules.forEach(({ module: path }, at) => {
    if (!path) {
      root.children.push({ label: "(no module)", path, module: at, children: [] });
      return;
    }
    let parent = root;
    const parts = path.split(".");
    parts.forEach((part, depth) => {
      const prefix = parts.slice(0, depth + 1).join(".");
      if (!nodes.has(prefix)) {
        const node = { label: part, path: prefix, module: null, children: [] };
        nodes.set(prefix, node);
        parent.children.push(node);
      }
      parent = nodes.get(prefix);
    });
    parent.module = at;
  });
  return root.children.map((child) => summedUp(joined(child), modules));
}

/** A node without its chains of mere prefixes: `a` with the only child `b` is `a.b`. */
function joined(node) {
  let [label, end] = [node.label, node];
  while (end.module === null && end.children.length === 1) {
    [end] = end.children;
    label = `${label}.${end.label}`;
  }
  return { ...end, label, children: end.children.map(joined) };
}

/** A node with what its subtree has. */
function summedUp(node, modules) {
  const children = node.children.map((child) => summedUp(child, modules));
  const own = node.module === null ? null : modules[node.module];
  return {
    ...node,
    children,
    first: Boolean(own?.is_first_fault) || children.some(({ first }) => first),
    modules: (own ? 1 : 0) + children.reduce((sum, child) => sum + child.modules, 0),
  };
}

/** The modules (indices) of a node and of all nodes below it. */
export const subtree = (node) => [...(node.module === null ? [] : [node.module]), ...node.children.flatMap(subtree)];

/** Which nodes are open at first: those above the first fault, and level by level the others, while at most `most` rows are shown. */
export function openAtFirst(roots, most) {
  const open = new Set();
  let rows = roots.length;
  let level = roots;
  while (level.length) {
    const inner = level.filter(({ children }) => children.length);
    const added = (nodes) => nodes.reduce((sum, { children }) => sum + children.length, 0);
    const opened = rows + added(inner) <= most ? inner : inner.filter(({ first }) => first);
    opened.forEach((node) => open.add(node));
    rows += added(opened);
    level = opened.flatMap(({ children }) => children);
  }
  return open;
}

/** At most `most` of the items, around the one that `matches`, or else the first ones. */
export function around(items, matches, most) {
  const at = Math.max(0, items.findIndex(matches));
  const begin = Math.max(0, Math.min(at - Math.floor(most / 2), items.length - most));
  return items.slice(begin, begin + most);
}
