"""The effect of a NeuronCore's instructions by opcode: waiting, moving data, computing (with the op class) or control.

Sources: the terminology that neuron-profile writes into each file ("processing at least one instruction, excluding
semaphore waits"), and the instructions of the NeuronCore engines as documented for NKI
(https://awsdocs-neuron.readthedocs-hosted.com, "nki.isa"). An op class is a kind of computation such as `matmul`
(words.OP_CLASSES).
"""

from __future__ import annotations

import re

_WAIT = re.compile(r"(EVENT_?)?SEMAPHORE(_WAIT)?\Z|WAIT", re.I)
_DRAIN = re.compile(r"DRAIN\Z", re.I)
# Loads and stores of the engines' registers and tables, and instructions that trigger a DMA.
_MOVE = re.compile(r"TENSOR_(LOAD|STORE)\Z|ACT_TABLE_LOAD|DMA_", re.I)
_MATMUL = re.compile(r"MATMUL|LDWEIGHTS|LOAD_(STATIONARY|WEIGHTS)|MULTIPLY_MOVING", re.I)
_CLASSES = (
    ("norm", re.compile(r"BN_(STATS|AGGR)|BATCH_?NORM", re.I)),
    ("embedding", re.compile(r"GATHER|SCATTER", re.I)),
    ("reduction", re.compile(r"REDUCE|REDUCTION|ACCUMULATOR|\AMAX|SCAN|POOL|MATCH_|FIND_INDEX|SORT", re.I)),
    (
        "elementwise",
        re.compile(
            r"\AACTIVATE|TENSOR_(TENSOR|SCALAR|COPY)|SCALAR_TENSOR|COPY|CAST|MEMSET|IOTA|SELECT|SHUFFLE|TRANSPOSE|DROPOUT"
            r"|RNG|RAND|RECIPROCAL|AFFINE|EXPONENTIAL|STREAM_",
            re.I,
        ),
    ),
)


def is_wait(opcode: str) -> bool:
    """Whether the instruction waits for a semaphore; `EVENT_SEMAPHORE_RANGE_CLEAR` does not."""
    return _WAIT.match(opcode) is not None


def is_drain(opcode: str) -> bool:
    """Whether the instruction lasts until the earlier instructions of its engine have ended."""
    return _DRAIN.match(opcode) is not None


def moves_data(opcode: str) -> bool:
    """Whether the instruction loads or stores registers or tables, or triggers a DMA."""
    return _MOVE.match(opcode) is not None


def class_of_opcode(opcode: str, kind: str = "") -> str | None:
    """The op class of a computing instruction; None if it controls the engine (a branch, a register write) or is not
    known. `kind`: the file's `instruction_type`. A transposition on the tensor engine is not a product of the model."""
    if _MATMUL.match(opcode):
        return "elementwise" if kind.upper() == "TRANSPOSE" else "matmul"
    return next((op_class for op_class, pattern in _CLASSES if pattern.search(opcode)), None)
