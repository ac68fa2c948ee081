"""Comparisons of recorded tensors for the tests of their page.

`python -m tests.compared_records FOLDER` writes their pages to FOLDER for inspection.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from tests.numpy_training import NumpyTraining
from tests.page_views import HOSTILE
from trainyard.numerics.compare.align_tensors import Alignment, TensorPair
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.compare.comparison_result import RecordComparison, Status, TensorPoint
from trainyard.numerics.compare.comparison_rule import ComparisonRule
from trainyard.numerics.compare.error_histogram import count_errors
from trainyard.numerics.compare.judge_tensors import Judgements
from trainyard.numerics.compare.list_tensors import list_tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.match_modules import ModuleMatches
from trainyard.numerics.compare.summarise_tensors import count_tensors, summarise_modules, summarise_steps
from trainyard.numerics.tensor_record import Phase, TensorKey, TensorRecord
from trainyard.report.numerics.numerics_page import page
from trainyard.report.numerics.numerics_report import NumericsReport, report_numerics

SCRIPT = "import torch\n\nx0 = torch.randn([8, 64])\nprint(torch.relu(x0).norm())\n"
_PARTS = ("attention_norm", "qkv", "attention", "out", "mlp_norm", "mlp", "mlp.gate", "mlp.up", "mlp.down")
_RECORD: dict[str, Any] = {"index": 0, "location": "src/model/decoder.py:217"}
_PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


def compared(folder: Path, name: str, script: str = "", replicas: int = 4, **changes: Any) -> NumericsReport:
    """The report of two small trainings, the second with `changes`."""
    training = NumpyTraining(layers=4, steps=3)
    good = training.write_all(folder / f"{name}-good", replicas) if replicas else training.write(folder / name)
    other = dataclasses.replace(training, **changes).write(folder / f"{name}-other")
    return report_numerics(compare_records(good, other), script)


def large(layers: int = 100, steps: int = 3, calls: int = 18) -> tuple[Alignment, Judgements]:
    """The judged tensors of a deep decoder, wrong from the middle of its first forward pass on."""
    modules = ["model"]
    for layer in range(layers):
        modules += [f"model.layers.{layer}", *(f"model.layers.{layer}.{part}" for part in _PARTS)]
    keys = [
        LogicalKey(TensorKey(step, phase, module, f"aten.op_{call}", "output", "", call % 3, 0), -1)
        for step in range(steps)
        for phase in _PHASES
        for module in (modules if phase == "forward" else modules[::-1])
        for call in range(calls // len(_PHASES))
    ]
    random = np.random.default_rng(0)
    fault = next(at for at, key in enumerate(keys) if key.tensor.module == f"model.layers.{layers // 2}.mlp_norm")
    limit = np.full(len(keys), 1e-6)
    error = limit * 10 ** random.uniform(-2, -0.2, len(keys))
    error[fault:] *= 1e4
    status: list[Status] = ["different" if wrong else "within rounding" for wrong in error > limit]
    rule = ComparisonRule(replicas=4, tensors=len(keys))
    pairs = tuple(TensorPair(key, key) for key in keys)
    judgements = Judgements(status, error, limit / 3, limit, [""] * len(keys), [None] * len(keys), rule)
    return Alignment(pairs, (), (), (), ModuleMatches({name: name for name in modules}, ())), judgements


def large_report(base: RecordComparison, alignment: Alignment, judgements: Judgements) -> NumericsReport:
    """The report on judged tensors, with the sides of another comparison."""
    assert base.first is not None
    records = {pair.a: TensorRecord(**_RECORD | pair.a.tensor._asdict()) for pair in alignment.pairs}
    key = alignment.pairs[judgements.status.index("different")].a
    first = replace(base.first, tensor=_point(base.first.tensor, key), count=judgements.status.count("different"))
    tensors = list_tensors(alignment, judgements, records, records, first.tensor)
    comparison = RecordComparison(
        **{name: getattr(base, name) for name in RecordComparison.__struct_fields__}
        | {
            "first": first,
            "rule": judgements.rule,
            "counts": count_tensors(alignment, judgements),
            "modules": summarise_modules(alignment, judgements, (), first.tensor),
            "steps": summarise_steps(alignment, judgements),
            "histogram": count_errors(alignment, judgements),
            "tensors": tensors,
            "tensors_left_out": len(alignment.pairs) - len(tensors),
        }
    )
    return report_numerics(comparison, SCRIPT)


def _point(point: TensorPoint, key: LogicalKey) -> TensorPoint:
    return replace(point, **key.tensor._asdict())


def hostile(folder: Path) -> NumericsReport:
    """A comparison with hostile names of modules, a hostile command and a hostile script."""
    names = [name for name in HOSTILE if "\ud800" not in name]
    report = compared(folder, "hostile", "\n".join(names), prefix=names[0], epsilon=1e-2)
    assert report.first is not None
    modules = tuple(
        replace(module, module=names[at % len(names)] + str(at), worst=names[1])
        for at, module in enumerate(report.modules)
    )
    tensors = tuple(replace(row, module=modules[0].module, name=names[0], location=names[5]) for row in report.tensors)
    side = replace(report.b, command=tuple(names), folder=names[2], environment={names[0]: names[1]})
    point = replace(report.first.tensor, module=names[5] * 20, location_a=names[0], location_b=names[1])
    first = replace(report.first, tensor=point, only_a=tuple(names), detail=names[1])
    return replace(report, modules=modules, tensors=tensors, b=side, first=first, headline=" ".join(names))


PAGES: dict[str, Callable[[Path], NumericsReport]] = {
    "different": lambda folder: compared(folder, "different", SCRIPT, epsilon=1e-2),
    "same": lambda folder: compared(folder, "same", parts=3),
    "unjudged": lambda folder: compared(folder, "unjudged", replicas=0, epsilon=1e-2),
    "large": lambda folder: large_report(compared(folder, "large", epsilon=1e-2), *large()),
    "hostile": hostile,
}
"""Name -> function that makes the report of a page; it writes records to `folder`."""


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for page_name, make in PAGES.items():
        (target / f"numerics-{page_name}.html").write_text(page(make(target / "records")), "utf-8")
