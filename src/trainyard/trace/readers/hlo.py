"""Classifies XLA operations: collectives and copies by opcode, compute by JAX primitive or XLA category.

Sources: the opcodes of https://openxla.org/xla/operation_semantics, the categories of XLA's profiler, and the names of
JAX's primitives, the last part of an operation's path (`jit(step)/transpose(jvp(Dense_0))/dot_general`). An op class is
a kind of computation such as `matmul` (words.OP_CLASSES). The readers of XLA's and Neuron's profiles are the callers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_LONGEST = 4096
_HLO = re.compile(r"%?(?P<name>[\w.\-]+) = ")
_OPCODE = re.compile(r"[\s)}\]](?P<opcode>[a-z][a-z0-9\-]*)\(")
_OPERAND = re.compile(r"-done\([^%]*%(?P<operand>[\w.\-]+)")
_TAIL = re.compile(r"(\.\d+|\.clone|\.remat\d*)+\Z")
_COLLECTIVE = re.compile(
    r"(?P<name>all-reduce-scatter|all-reduce|all-gather|reduce-scatter|(ragged-)?all-to-all|collective-permute"
    r"|collective-broadcast|send|recv)(?P<part>-start|-done)?(?![a-z\-])"
)
_COLLECTIVES = {
    "all-reduce": "all_reduce",
    "all-reduce-scatter": "reduce_scatter",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "send_recv",
    "collective-broadcast": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
}
_COPIES = {"copy": "Memcpy DtoD", "infeed": "Memcpy HtoD", "outfeed": "Memcpy DtoH"}
_COPY = re.compile(r"(?P<name>copy-start|copy-done|infeed|outfeed)(?![a-z\-])")
CONTAINERS = ("while", "conditional", "call", "async-start", "async-done", "async-update")
"""Opcodes whose time is that of the operations inside them."""

# JAX primitives and HLO opcodes by op class. Their names differ at most in the hyphen.
_PRIMITIVES = {
    "matmul": "dot dot-general ragged-dot ragged-dot-general scaled-dot cublas-gemm triangular-solve cholesky",
    "conv": "convolution conv-general-dilated cudnn-conv cudnn-conv-bias-activation cudnn-conv-fw cudnn-conv-bw-input "
    "cudnn-conv-bw-filter",
    "reduction": "reduce reduce-sum reduce-max reduce-min reduce-prod reduce-and reduce-or reduce-window "
    "reduce-window-sum reduce-window-max argmax argmin cumsum cumprod cummax cummin cumlogsumexp sort top-k "
    "select-and-scatter select-and-scatter-add",
    "embedding": "gather scatter scatter-add scatter-mul scatter-max scatter-min",
    "elementwise": "add add-any sub subtract mul multiply div divide exp exponential exp2 expm1 log log1p tanh "
    "logistic "
    "sqrt rsqrt cbrt pow power integer-pow max maximum min minimum neg negate abs sign floor ceil round rem sin cos "
    "erf erf-inv clamp select select-n convert convert-element-type broadcast broadcast-in-dim transpose reshape "
    "concatenate slice dynamic-slice dynamic-update-slice pad iota copy squeeze rev reverse and or not xor eq ne lt le "
    "gt ge compare square is-finite rng-bit-generator rng-uniform random-bits threefry2x32 bitcast-convert-type "
    "reduce-precision shift-left shift-right-logical",
}
_CLASS_OF = {name: op_class for op_class, names in _PRIMITIVES.items() for name in names.split()}
# Scopes in a primitive's path that decide its class.
_SCOPES = (
    ("attention", re.compile(r"attention|flash_|splash_|sdpa", re.I)),
    ("softmax", re.compile(r"softmax|cross_?entropy", re.I)),
    ("norm", re.compile(r"(batch|layer|group|rms)_?norm", re.I)),
)
_CATEGORIES = {
    "convolution": "conv",
    "convolution base-dilated": "conv",
    "convolution window-dilated": "conv",
    "loop fusion": "elementwise",
    "non-fusion elementwise": "elementwise",
    "data formatting": "elementwise",
    "copy": "elementwise",
    "reduce": "reduction",
    "sort": "reduction",
    "gather": "embedding",
    "scatter": "embedding",
    "gather fusion": "embedding",
    "scatter fusion": "embedding",
}
# Fusions around a matrix product or convolution; their path may name another operation of the fusion.
_PRODUCTS = ("convolution fusion", "output fusion")


class Op(NamedTuple):
    """An operation's short name and opcode. `part`: `start` or `done` of an asynchronous operation, else empty;
    `begun`: the name of the start that a done ends, if the file states it."""

    name: str
    opcode: str
    part: str = ""
    begun: str = ""


@lru_cache(maxsize=65536)
def op_of(text: str) -> Op:
    """Parses HLO text (`%fusion.3 = bf16[8]{0} fusion(...)`) or only a name (`fusion.3`), whose opcode is the name
    without numbers at its end. `part` and `begun` are set for asynchronous collectives and copies only."""
    text = text[:_LONGEST]
    name_match = _HLO.match(text)
    name = name_match["name"] if name_match else text.lstrip("%")
    opcode_match = _OPCODE.search(text, name_match.end()) if name_match else None
    opcode = opcode_match["opcode"] if opcode_match else _TAIL.sub("", name)
    match = _COLLECTIVE.match(opcode) or _COPY.match(opcode)
    part = "start" if match and match[0].endswith("-start") else "done" if match and match[0].endswith("-done") else ""
    operand = _OPERAND.search(text) if part == "done" else None
    return Op(name=name, opcode=opcode, part=part, begun=operand["operand"] if operand else "")


def collective_of(op: Op, category: str = "") -> str | None:
    """The collective that an operation or fusion runs; None if it is not a collective."""
    match = _COLLECTIVE.match(op.opcode) or _COLLECTIVE.match(category)
    return _COLLECTIVES[match["name"]] if match else None


def copy_of(op: Op) -> str | None:
    """The copy that an operation runs, by its CUDA name (`Memcpy HtoD`); None if it is not a copy."""
    match = _COPY.match(op.opcode)
    return _COPIES[match["name"].removesuffix("-start").removesuffix("-done")] if match else None


@lru_cache(maxsize=65536)
def class_of(opcode: str, category: str, path: str) -> str | None:
    """The op class of an operation by its `opcode`, the `category` that XLA's profiler assigns to it, and its `path`
    (both empty if unknown); None if they do not show it. A fusion around a product may be named after another operation
    of the fusion, so only a product's own primitive decides there."""
    if opcode.startswith("gemm_fusion"):  # a GPU's fusion around a product, whose path may be that of another operation
        return "matmul"
    primitive = path.rsplit("/", 1)[-1].partition("[")[0].replace("_", "-")
    op_class = _CLASS_OF.get(primitive)
    if category in _PRODUCTS and op_class not in ("matmul", "conv"):
        return None
    scope = next((name for name, pattern in _SCOPES if pattern.search(path)), None)
    if scope == "attention" or (scope and op_class in ("elementwise", "reduction")):
        return scope
    return op_class or _CATEGORIES.get(category) or _class_of_fusion(opcode)


def _class_of_fusion(opcode: str) -> str | None:
    """The op class of a GPU fusion, which is named after its operations: `loop_add_fusion`, `wrapped_transpose`."""
    if opcode.startswith("loop_") and opcode.endswith("_fusion"):
        return "elementwise"
    return _CLASS_OF.get(opcode.removeprefix("wrapped_").replace("_", "-"))
