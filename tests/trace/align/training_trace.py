"""Traces of training loops, evaluations and serving, made from a few rows, with or without marks."""

from tests.trace_maker import MAIN, trace

FORWARD, BACKWARD, UPDATE = ("aten::linear", "aten::relu", "aten::linear"), 3, "aten::_foreach_add_"
ENGINE = "autograd::engine::evaluate_function: AddmmBackward0"


class Recording:
    """A host that runs one thing after another. On a device, each op launches a kernel that starts 2 ns later and lasts
    half as long as the op; times are ns."""

    def __init__(self, on_device=False):
        self.on_device = on_device
        self.at, self.seq = 1000, 0
        self.host, self.device, self.marks = [], [], []

    def op(self, name, kernel="elementwise_kernel", ns=20, cat="cpu_op", **args):
        self.host.append((name, MAIN, self.at, self.at + ns, cat, args))
        if self.on_device and kernel:
            self.device.append((kernel, 7, self.at + 4, self.at + 4 + ns // 2, self.at + 2))
        self.at += ns + 4

    def rest(self, ns):
        self.at += ns

    def inside(self, name, work, cat="user_annotation"):
        start = self.at
        self.at += 1
        work()
        self.host.append((name, MAIN, start, self.at, cat))
        self.at += 1

    def fetch(self):
        self.inside("enumerate(DataLoader)#_Iter.__next__", lambda: self.op("aten::stack", kernel=None))

    def forward(self, with_gradients=True, ns=20):
        for name in FORWARD:
            self.seq += with_gradients
            numbers = {"Sequence number": self.seq} if with_gradients else {}
            self.op(name, "gemm" if name == "aten::linear" else "elementwise_kernel", ns, **numbers)

    def backward(self):
        for number in range(BACKWARD):
            self.op(ENGINE, "gemm", **{"Sequence number": self.seq - number, "Fwd thread id": 1})

    def update(self, name="Optimizer.step#Adam.step"):
        self.inside(name, lambda: self.op(UPDATE, "multi_tensor_apply_kernel"))

    def train(self, label=None, micro_batches=1, optimizers=("Optimizer.step#Adam.step",), ns=20):
        """One step; its mark, if it has a label, ends with `end_step`."""
        start = self.at
        for _ in range(micro_batches):
            self.fetch()
            self.forward(ns=ns)
            self.backward()
        for name in optimizers:
            self.update(name)
        if label is not None:
            self.marks.append((label, start, self.at))

    def evaluate(self, batches=3):
        for _ in range(batches):
            self.fetch()
            self.forward(with_gradients=False)
            self.op("aten::argmax", "reduce_kernel")

    def save(self, ns=500, name="torch/serialization.py(1): save"):
        self.inside(name, lambda: self.rest(ns), cat="python_function")

    def extend_mark(self):
        """Lets the last mark end now."""
        label, start, _ = self.marks[-1]
        self.marks[-1] = (label, start, self.at)

    def document(self, **facts):
        return trace(device=self.device, host=self.host, marks=self.marks, **facts)
