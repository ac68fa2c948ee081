"""Operation trees for tests, written as nested tuples or drawn at random."""

from hypothesis import strategies as st

from trainyard.operation_tree import KERNEL, MODULE, OP, PHASE, STEP, OperationNode, OperationTree


class Draft:
    """A node that can still be edited: rename it, or move, add and remove its children."""

    def __init__(self, label, kind, ns=0, calls=0.0, children=()):
        self.label, self.kind, self.ns, self.calls = label, kind, ns, calls
        self.children = list(children)

    def walk(self):
        yield self
        for child in self.children:
            yield from child.walk()

    def total(self):
        return sum(node.ns for node in self.walk())

    def tree(self):
        nodes = []

        def add(draft, parent):
            nodes.append(OperationNode(draft.label, draft.kind, parent, draft.ns, draft.calls))
            row = len(nodes) - 1
            for child in draft.children:
                add(child, row)

        add(self, -1)
        return OperationTree(tuple(nodes))


def word(number):
    """A word for each number, without digits: labels that have no part in common."""
    letters = ""
    while True:
        letters += chr(ord("a") + number % 26)
        number //= 26
        if not number:
            return f"w{letters}x"


@st.composite
def drafts(draw):
    """A step of two phases with nested modules, ops and kernels; all labels differ, and each module has two ops."""
    count = iter(range(10**6))

    def op(calls):
        kernels = [
            Draft(f"k{word(next(count))}", KERNEL, draw(st.integers(1, 10**6)), calls)
            for _ in range(draw(st.integers(1, 2)))
        ]
        return Draft(f"o{word(next(count))}", OP, draw(st.integers(0, 1000)), calls, kernels)

    def module(depth):
        calls = float(draw(st.integers(1, 5)))
        inner = [module(depth - 1) for _ in range(draw(st.integers(0, 2)))] if depth else []
        return Draft(f"m{word(next(count))}", MODULE, 0, calls, [*inner, op(calls), op(calls)])

    phases = [
        Draft(name, PHASE, draw(st.integers(0, 10)), 0.0, [module(draw(st.integers(0, 2))) for _ in range(2)])
        for name in ("forward", "backward")
    ]
    return Draft("step", STEP, draw(st.integers(0, 10)), 0.0, phases)


def parent_of(root, node):
    """The parent of a node of the draft `root`."""
    return next(draft for draft in root.walk() if any(child is node for child in draft.children))
