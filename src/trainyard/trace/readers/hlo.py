"""What XLA's operations are: collectives by their opcode, arithmetic by the JAX primitive or the category they state.

Sources: the opcodes of https://openxla.org/xla/operation_semantics, the categories of XLA's profiler, and the names of
JAX's primitives, which stand last in an operation's path (`jit(step)/transpose(jvp(Dense_0))/dot_general`).
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

# A JAX primitive or an HLO opcode -> op class. Their names differ in the hyphen only where they differ at all.
_PRIMITIVES = {
    "matmul": "dot dot-general ragged-dot ragged-dot-general scaled-dot cublas-gemm triangular-solve cholesky",
    "conv": "convolution conv-general-dilated",
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
_CLASS_OF = {name: what for what, names in _PRIMITIVES.items() for name in names.split()}
# What surrounds a primitive in its path, where that is more than arithmetic of one element.
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
# Fusions around a product, whose path may name what was fused to it.
_PRODUCTS = ("convolution fusion", "output fusion")


class Op(NamedTuple):
    """An operation's short name and opcode; `part`: `start` or `done` of an asynchronous one, else empty; `begun`: the
    name of the start that a done ends, where it is told."""

    name: str
    opcode: str
    part: str = ""
    begun: str = ""


@lru_cache(maxsize=65536)
def op_of(text: str) -> Op:
    """From HLO text (`%fusion.3 = bf16[8]{0} fusion(...)`) or a name alone (`fusion.3`)."""
    text = text[:_LONGEST]
    named = _HLO.match(text)
    name = named["name"] if named else text.lstrip("%")
    called = _OPCODE.search(text, named.end()) if named else None
    opcode = called["opcode"] if called else _TAIL.sub("", name)
    found = _COLLECTIVE.match(opcode) or _COPY.match(opcode)
    part = "start" if found and found[0].endswith("-start") else "done" if found and found[0].endswith("-done") else ""
    begun = _OPERAND.search(text) if part == "done" else None
    return Op(name, opcode, part, begun["operand"] if begun else "")


def collective_of(op: Op, category: str = "") -> str | None:
    """The collective that an operation or fusion is."""
    found = _COLLECTIVE.match(op.opcode) or _COLLECTIVE.match(category)
    return _COLLECTIVES[found["name"]] if found else None


def copy_of(op: Op) -> str | None:
    """The copy that an operation is, in CUDA's words."""
    found = _COPY.match(op.opcode)
    return _COPIES[found["name"].removesuffix("-start").removesuffix("-done")] if found else None


@lru_cache(maxsize=65536)
def class_of(opcode: str, category: str, path: str) -> str | None:
    """The op class, or None where nothing decides. A product's fusion may be named after what was fused to it, so
    only a product's own primitive decides there."""
    primitive = path.rsplit("/", 1)[-1].partition("[")[0].replace("_", "-")
    said = _CLASS_OF.get(primitive)
    if category in _PRODUCTS and said not in ("matmul", "conv"):
        return None
    scope = next((what for what, pattern in _SCOPES if pattern.search(path)), None)
    if scope == "attention" or (scope and said in ("elementwise", "reduction")):
        return scope
    return said or _CATEGORIES.get(category) or _of_opcode(opcode)


def _of_opcode(opcode: str) -> str | None:
    """On a GPU a fusion is named after what is in it: `loop_add_fusion`, `wrapped_transpose`."""
    if opcode.startswith("loop_") and opcode.endswith("_fusion"):
        return "elementwise"
    return _CLASS_OF.get(opcode.removeprefix("wrapped_").replace("_", "-"))
