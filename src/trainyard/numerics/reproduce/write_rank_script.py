"""The source of a reproducer whose operations include collectives: it runs each rank in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainyard.numerics.reproduce.collective_calls import ranks_of
from trainyard.numerics.reproduce.operation_source import function_lines, needed_operations, wide_keywords
from trainyard.numerics.reproduce.write_script import COPIES, ERROR, Side, join_script

if TYPE_CHECKING:
    from trainyard.numerics.reproduce.script_values import Value, ValueSource

_RUN = """

def run(process, store, results):
    rank, timeout = RANKS[process], timedelta(seconds=60)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", timeout, len(RANKS), process)
    groups = {ranks: dist.new_group([RANKS.index(each) for each in ranks]) for ranks in GROUPS}
    operations_a, inputs_a, float64 = A[rank]
    operations_b, inputs_b = B[rank]
    reference = operations_a(groups, *wide(*inputs_a), **float64).double()
    result_a = operations_a(groups, *copies(*inputs_a))
    result_b = operations_b(groups, *copies(*inputs_b))
    types = [f"{result.dtype} {list(result.shape)}" for result in (result_a, result_b)]
"""
_ERRORS = "    errors = [error(result, reference) for result in (result_a, result_b)]\n"
_DISTANCES = """    errors = []
    for result in (result_a, result_b):  # the distance from the first rank
        first = result.clone()
        dist.broadcast(first, 0)
        errors.append(error(result, first.double()))
"""
_MAIN = """    results.put((*errors, *types))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run, (f"{folder}/store", results), len(RANKS))
        rows = [results.get() for rank in RANKS]
    errors_a, errors_b, types_a, types_b = zip(*rows)
    worst_a, worst_b = (max(errors, key=lambda each: (each != each, each)) for errors in (errors_a, errors_b))
    print(f"A: error {worst_a:.3g} of {types_a[0]}")
    print(f"B: error {worst_b:.3g} of {types_b[0]}")
"""

Compared = Literal["values", "dtype", "shape", "replicas"]


class RankScriptParts(NamedTuple):
    """`title`: lines on the difference. `a`, `b`: rank -> operations. `compares`: the property in which the sides
    differ: values, dtype or shape of the result, or its equality over the ranks. `limit`: relative error that rounding
    explains."""

    title: Sequence[str]
    values: Sequence[tuple[Value, ValueSource]]
    a: Mapping[int, Side]
    b: Mapping[int, Side]
    limit: float
    compares: Compared


def write_rank_script(parts: RankScriptParts) -> str:
    """The script. Raises `NotEnoughEvidence` if an argument cannot be written as source."""
    torch_modules = ["torch", "torch.distributed as dist", "torch.multiprocessing as mp"]
    return join_script(parts.title, ["sys", "tempfile", "datetime"], torch_modules, _lines(parts))


def _lines(parts: RankScriptParts) -> Iterator[str]:
    yield "torch.set_grad_enabled(False)"
    yield "torch.manual_seed(0)"
    for value, source in parts.values:
        yield f"{value.name} = {source.text}"
    yield from (COPIES + ERROR).splitlines()
    names: dict[str, dict[int, str]] = {}
    for side, sides in (("a", parts.a), ("b", parts.b)):
        functions: dict[str, str] = {}
        """Text of a function -> its name. Ranks whose operations are the same share a function."""
        for rank, each in sides.items():
            inputs = {name: f"x{at}" for at, name in enumerate(each.names)}
            text = "\n".join(function_lines("", each.captured, inputs, ["groups", *inputs.values()]))
            if text not in functions:
                functions[text] = f"operations_of_{side}{f'_{rank}' if functions else ''}"
                yield text.replace("def (", f"def {functions[text]}(", 1)
            names.setdefault(side, {})[rank] = functions[text]
    yield ""
    yield ""
    yield f"RANKS = {list(parts.a)}  # of the training"
    yield f"GROUPS = {_groups(parts)}"
    yield f"LIMIT = {parts.limit:.3g}  # relative error that rounding explains"
    yield "# rank: operations, their inputs, the formats of the float64 reference"
    yield "A = {"
    for rank, side in parts.a.items():
        keywords = wide_keywords(side.captured).removeprefix(", ")
        yield f"    {rank}: ({names['a'][rank]}, [{', '.join(side.names.values())}], dict({keywords})),"
    yield "}"
    yield "B = {"
    for rank, side in parts.b.items():
        yield f"    {rank}: ({names['b'][rank]}, [{', '.join(side.names.values())}]),"
    yield "}"
    yield from (_RUN + (_DISTANCES if parts.compares == "replicas" else _ERRORS) + _MAIN).splitlines()
    match parts.compares:
        case "dtype":
            shows = "any(a.split()[0] != b.split()[0] for a, b in zip(types_a, types_b))"
        case "shape":
            shows = "any(a.split()[1:] != b.split()[1:] for a, b in zip(types_a, types_b))"
        case _:
            shows = "worst_a <= LIMIT and not worst_b <= LIMIT"
    yield f"    sys.exit(1 if {shows} else 0)"


def _groups(parts: RankScriptParts) -> list[tuple[int, ...]]:
    """The process groups of all needed collectives."""
    sides = [*parts.a.values(), *parts.b.values()]
    return sorted({ranks for side in sides for ranks in ranks_of(needed_operations(side.captured))})
