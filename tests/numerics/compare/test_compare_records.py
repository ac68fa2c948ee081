"""Comparisons of recorded trainings: benign differences raise no alarm, faults are named, bad records are refused."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_record

from tests.numpy_training import Fault, NumpyTraining, Values, summarised
from trainyard.errors import BadFile, BadInput
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.compare.comparison_result import RecordComparison
from trainyard.numerics.record_files import FORMAT, RecordWriter
from trainyard.numerics.tensor_record import RecordHeader, TensorKey, TensorRecord


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record in float32 with its reference and replicas."""
    return NumpyTraining().write_all(tmp_path_factory.mktemp("float32"))


@pytest.fixture(scope="module")
def bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return NumpyTraining(dtype="bfloat16").write_all(tmp_path_factory.mktemp("bfloat16"))


def compared(reference: Path, folder: Path, **changes: Any) -> RecordComparison:
    return compare_records(reference, NumpyTraining(**changes).write(folder / "b"))


def at(module: str, operation: str, change: Fault, phase: str = "forward", step: int | None = None) -> Fault:
    """The fault that changes the results of one operation."""

    def fault(key: TensorKey, values: Values) -> Values | None:
        is_there = (key.module, key.operation, key.phase) == (module, operation, phase) and step in (None, key.step)
        return change(key, values) if is_there else values

    return fault


def named(comparison: RecordComparison) -> tuple[str, str, str, int]:
    """Kind, module, operation and step of the first divergence."""
    assert comparison.first is not None
    tensor = comparison.first.tensor
    return comparison.first.kind, tensor.module, tensor.operation or tensor.role, tensor.step


@pytest.mark.parametrize(
    "changes", [{}, {"parts": 3}, {"dtype": "bfloat16"}, {"dtype": "float64"}, {"parts": 24}], ids=str
)
def test_other_kernels_and_dtypes_raise_no_alarm(reference: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    comparison = compared(reference, tmp_path, **changes)
    assert comparison.verdict == "same"
    assert comparison.counts.different == 0
    assert comparison.counts.compared == 98


def test_float32_raises_no_alarm_against_bfloat16(bfloat16: Path, tmp_path: Path) -> None:
    assert compared(bfloat16, tmp_path).verdict == "same"


@pytest.mark.slow
def test_benign_pairs_of_many_trainings_raise_no_alarm(tmp_path: Path) -> None:
    alarms: list[tuple[int, str]] = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        dtype = ("float32", "bfloat16")[seed % 2]
        training = NumpyTraining(
            seed=seed, layers=int(random.integers(1, 6)), width=int(random.integers(4, 64)), dtype=dtype
        )
        a = training.write_all(tmp_path / f"a{seed}")
        for name, other in (
            ("parts", replace(training, parts=int(random.integers(2, 5)))),
            ("float32", replace(training, dtype="float32")),
            ("bfloat16", replace(training, dtype="bfloat16")),
            ("jitter", replace(training, jitter=10_000 + seed)),
        ):
            if compare_records(a, other.write(tmp_path / f"b{seed}{name}")).verdict == "different":
                alarms.append((seed, name))
    assert alarms == []


FAULTS: dict[str, tuple[dict[str, Any], tuple[str, str, str, int]]] = {
    "epsilon": ({"epsilon": 2e-5}, ("value", "layers.0", "aten.rms_norm", 0)),
    "missing scale": ({"scaled": False}, ("value", "layers.0", "aten.silu", 0)),
    "sign flip in backward": (
        {"fault": at("layers.1", "aten.silu_backward", lambda _, values: -values, "backward")},
        ("value", "layers.1", "aten.silu_backward", 0),
    ),
    "permutation": (
        {"fault": at("layers.1", "aten.mm", lambda _, values: values[::-1])},
        ("value", "layers.1", "aten.mm", 0),
    ),
    "one element": (
        {
            "fault": at(
                "layers.2",
                "aten.mm",
                lambda _, values: values * (1 + (np.arange(values.size) == 7).reshape(values.shape)),
            )
        },
        ("value", "layers.2", "aten.mm", 0),
    ),
    "relative error of 1e-5": (
        {"fault": at("layers.1", "aten.mm", lambda _, values: values * (1 + 1e-5))},
        ("value", "layers.1", "aten.mm", 0),
    ),
    "NaN": (
        {"fault": at("layers.2", "aten.silu", lambda _, values: values * np.nan, step=1)},
        ("non-finite", "layers.2", "aten.silu", 1),
    ),
    "learning rate": ({"learning_rate": 0.1001}, ("value", "layers.0", "weight", 0)),
    "missing gradient": (
        {"fault": lambda key, values: None if (key.role, key.module) == ("gradient", "layers.1") else values},
        ("missing gradient", "layers.1", "gradient", 0),
    ),
    "other data": ({"seed": 1}, ("data", "", "data", 0)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named(reference: Path, tmp_path: Path, name: str) -> None:
    changes, expected = FAULTS[name]
    comparison = compared(reference, tmp_path, **changes)
    assert comparison.verdict == "different"
    assert named(comparison) == expected


def test_operation_that_b_lacks_and_last_correct_tensor_are_named(reference: Path, tmp_path: Path) -> None:
    first = compared(reference, tmp_path, scaled=False).first
    assert first is not None
    assert first.only_a == ("aten.mul (model.py:13)",)
    assert first.only_b == ()
    assert first.last_correct is not None
    assert (first.last_correct.operation, first.tensor.location_a) == ("aten.mm", "model.py:14")


def test_faults_in_bfloat16_are_named_if_larger_than_rounding(bfloat16: Path, tmp_path: Path) -> None:
    flipped = at("layers.1", "aten.silu_backward", lambda _, values: -values, "backward")
    comparison = compared(bfloat16, tmp_path, dtype="bfloat16", fault=flipped)
    assert named(comparison) == ("value", "layers.1", "aten.silu_backward", 0)


def test_single_operation_in_a_coarser_dtype_is_named(reference: Path, tmp_path: Path) -> None:
    """Although a training in bfloat16 as a whole is not a fault."""

    def rounded(_: TensorKey, values: Values) -> Values:
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    comparison = compared(reference, tmp_path, fault=at("layers.1", "aten.mm", rounded, step=0))
    assert named(comparison) == ("value", "layers.1", "aten.mm", 0)


def test_weight_that_is_never_updated_is_named(tmp_path: Path) -> None:
    """In a record of the weights alone, which start equal and of which one does not change in B."""
    for side, updated in (("a", True), ("b", False)):
        for variant in ("plain", "float64", *(f"replica-{number}" for number in range(1, 5))):
            with RecordWriter(tmp_path / side, header(variant)) as writer:
                for step in range(2):
                    values = np.ones((4, 4)) + 1e-9 * step * updated  # far below what values can show
                    writer.write(summarised(record(step=step), values))
    comparison = compare_records(tmp_path / "a", tmp_path / "b")
    assert named(comparison) == ("not updated", "layer", "weight", 1)


def header(variant: str, **fields: Any) -> RecordHeader:
    return replace_record(RecordHeader(format=FORMAT, variant=variant, rank=0, ranks=1, level="operations"), **fields)


def record(**fields: Any) -> TensorRecord:
    fixed = {"index": 0, "step": 0, "phase": "optimizer", "role": "weight", "module": "layer", "name": "weight"}
    return TensorRecord(**{**fixed, "dtype": "float32", **fields})


def test_compensated_operation_is_no_fault(reference: Path, tmp_path: Path) -> None:
    """Another intermediate result within a module whose output is the same."""
    training = NumpyTraining()
    with RecordWriter(tmp_path / "b", header("plain")) as writer:
        for tensor, values in training.records():
            is_other = tensor.operation == "aten.silu" and tensor.module == "layers.1"
            writer.write(summarised(tensor, values + 1 if is_other else values))
    comparison = compare_records(reference, tmp_path / "b")
    assert comparison.verdict == "same"
    assert comparison.counts.compensated == 2


def test_shards_of_ranks_are_compared_with_whole_tensors(reference: Path, tmp_path: Path) -> None:
    sharded = NumpyTraining().write_sharded(tmp_path / "b", ranks=2)
    comparison = compare_records(reference, sharded)
    assert comparison.verdict == "same"
    assert comparison.counts.compared == 98
    faulty = at("layers.1", "aten.mm", lambda _, values: values * 1.001, "backward")
    other = NumpyTraining(fault=faulty).write_sharded(tmp_path / "c", ranks=3)
    assert compare_records(reference, other).verdict == "different"


def test_replicas_that_differ_between_ranks_are_named(reference: Path, tmp_path: Path) -> None:
    for rank in range(2):
        with RecordWriter(tmp_path / "b", header("plain", rank=rank, ranks=2, layout="dp_replicate=2")) as writer:
            for tensor, values in NumpyTraining().records():
                is_other = rank == 1 and tensor.role == "gradient" and tensor.module == "layers.2" and tensor.step == 1
                writer.write(summarised(tensor, np.nextafter(values, np.inf, dtype=np.float32) if is_other else values))
    comparison = compare_records(reference, tmp_path / "b")
    assert named(comparison) == ("replicas differ", "layers.2", "gradient", 1)


def test_renamed_modules_are_matched_and_reported(reference: Path, tmp_path: Path) -> None:
    comparison = compared(reference, tmp_path, prefix="blocks.", epsilon=1e-3)
    assert [(pair.a, pair.b) for pair in comparison.renamed] == [(f"layers.{n}", f"blocks.{n}") for n in range(3)]
    assert named(comparison)[1:3] == ("layers.0", "aten.rms_norm")
    wrapped = compare_records(reference, NumpyTraining(prefix="module.layers._orig_mod.").write(tmp_path / "wrapped"))
    assert (wrapped.verdict, wrapped.renamed) == ("same", ())


def test_modules_alone_are_compared_with_operations(reference: Path, tmp_path: Path) -> None:
    """As of a compiled program, whose operations are not recorded."""

    def write_boundaries(folder: Path, **changes: Any) -> Path:
        with RecordWriter(folder, header("plain", level="modules")) as writer:
            for tensor, values in NumpyTraining(**changes).records():
                if not tensor.operation:
                    writer.write(summarised(tensor, values))
        return folder

    comparison = compare_records(reference, write_boundaries(tmp_path / "b", parts=2))
    assert (comparison.verdict, comparison.counts.only_a) == ("same", 0)
    faulty = compare_records(reference, write_boundaries(tmp_path / "c", epsilon=1e-3))
    assert named(faulty) == ("value", "layers.0", "output", 0)


def test_exact_comparison_reports_other_bits(reference: Path, tmp_path: Path) -> None:
    same = NumpyTraining().write(tmp_path / "b")
    assert compare_records(reference, same, identical=True).verdict == "same"
    other = NumpyTraining(parts=2).write(tmp_path / "c")
    assert named(compare_records(reference, other, identical=True))[0] == "not deterministic"


def test_record_without_reference_cannot_tell(tmp_path: Path) -> None:
    a = NumpyTraining().write(tmp_path / "a")
    assert compared(a, tmp_path / "other", parts=2).verdict == "cannot tell"
    assert compared(a, tmp_path / "equal").verdict == "same"  # bit by bit


def test_values_of_the_order_of_rounding_are_undetectable(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = {name: random.standard_normal((8, 8)) for name in ("plain", "float64", "replica-1", "replica-2")}
    for variant, tensor in values.items():
        with RecordWriter(tmp_path / "a", header(variant)) as writer:
            writer.write(summarised(record(), tensor))
    with RecordWriter(tmp_path / "b", header("plain")) as writer:
        writer.write(summarised(record(), -values["float64"]))
    comparison = compare_records(tmp_path / "a", tmp_path / "b")
    assert comparison.verdict == "cannot tell"
    assert comparison.counts.undetectable == 1


def test_other_micro_batches_leave_gradients_and_weights(reference: Path, tmp_path: Path) -> None:
    """The samples of a step on one side in two halves."""
    with RecordWriter(tmp_path / "b", header("plain")) as writer:
        for tensor, values in NumpyTraining().records():
            if tensor.name == "weight":
                writer.write(summarised(tensor, values))
            elif values.ndim:
                for call in range(2):
                    half = np.split(values, 2)[call]
                    writer.write(summarised(replace_record(tensor, call=2 * tensor.call + call, shape=()), half))
    comparison = compare_records(reference, tmp_path / "b")
    assert comparison.verdict == "same"
    assert comparison.counts.compared == 12


def test_different_models_and_steps_are_refused(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\[24, 24\].*\[16, 16\]"):
        compared(reference, tmp_path, width=16)
    with RecordWriter(tmp_path / "c", header("plain")) as writer:
        writer.write(summarised(record(step=7), np.ones((2, 2))))
    with pytest.raises(BadInput, match="none in common"):
        compare_records(reference, tmp_path / "c")


def test_record_that_is_cut_short_is_compared_and_reported(reference: Path, tmp_path: Path) -> None:
    b = NumpyTraining(epsilon=1e-3).write(tmp_path / "b")
    file = b / "plain" / "rank0.jsonl.gz"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    comparison = compare_records(reference, b)
    assert named(comparison)[1:3] == ("layers.0", "aten.rms_norm")
    assert comparison.b.cut == (0,)
    assert comparison.b.tensors < 98


@pytest.mark.parametrize(
    "line",
    [b"not json", b'{"format": 99, "variant": "plain", "rank": 0, "ranks": 1, "level": "steps"}', b"", b"{}"],
)
def test_damaged_files_are_refused(reference: Path, tmp_path: Path, line: bytes) -> None:
    (tmp_path / "b" / "plain").mkdir(parents=True)
    (tmp_path / "b" / "plain" / "rank0.jsonl.gz").write_bytes(gzip.compress(line + b"\n" if line else b""))
    with pytest.raises(BadFile):
        compare_records(reference, tmp_path / "b")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308])
def test_hostile_numbers_are_no_pass(reference: Path, tmp_path: Path, value: float) -> None:
    """Sketches that no recorder writes."""
    with RecordWriter(tmp_path / "b", header("plain")) as writer:
        for tensor, values in NumpyTraining().records():
            writer.write(replace_record(summarised(tensor, values), hash="", sketch=np.full(64, value).tobytes()))
    comparison = compare_records(reference, tmp_path / "b")
    assert comparison.counts.within_rounding == 0
    assert comparison.verdict != "same"


def test_views_of_other_shapes_are_compared_by_value(reference: Path, tmp_path: Path) -> None:
    for name, transposed in (("view", False), ("transposed", True)):
        with RecordWriter(tmp_path / name, header("plain")) as writer:
            for tensor, values in NumpyTraining().records():
                is_output = tensor.role == "output" and not tensor.operation
                if is_output:
                    values = values.T if transposed else values[:, None]
                writer.write(summarised(replace_record(tensor, shape=()), values))
    assert compare_records(reference, tmp_path / "view").verdict == "same"
    assert named(compare_records(reference, tmp_path / "transposed")) == ("value", "layers.0", "output", 0)


def test_parameters_of_modules_that_b_lacks_have_no_gradient(reference: Path, tmp_path: Path) -> None:
    """As of modules in a list, which the optimizer does not get and whose paths are unknown."""
    with RecordWriter(tmp_path / "b", header("plain")) as writer:
        for tensor, values in NumpyTraining().records():
            if tensor.module != "layers.1":
                writer.write(summarised(tensor, values))
            elif tensor.name != "weight":
                writer.write(summarised(replace_record(tensor, module="Layer"), values))
    assert named(compare_records(reference, tmp_path / "b")) == ("missing gradient", "layers.1", "gradient", 0)
