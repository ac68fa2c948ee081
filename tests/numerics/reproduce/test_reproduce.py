"""Scripts that show the first difference of two trainings alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.refused import refused  # noqa: E402
from trainyard import api  # noqa: E402
from trainyard.errors import BadInput, NotEnoughEvidence  # noqa: E402
from trainyard.numerics.reproduce.captured_slice import CapturedOperation, CapturedSlice  # noqa: E402
from trainyard.numerics.reproduce.operation_source import needed_inputs  # noqa: E402
from trainyard.numerics.reproduce.script_values import (  # noqa: E402
    Value,
    captured_source,
    random_source,
    shared_names,
)
from trainyard.numerics.reproduce.write_script import ScriptParts, Side, write_script  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "compare" / "small_decoder.py"


def call(name: str, operation: str, *arguments: Any, **keywords: Any) -> CapturedOperation:
    return CapturedOperation(
        name=name,
        operation=operation,
        arguments=arguments,
        keywords=keywords,
        module="Model.layer",
        location="model.py:3",
        is_alias=operation.split(".")[1].endswith("_"),
        written=(arguments[0]["tensor"],) if operation.split(".")[1].endswith("_") else (),
    )


def captured(*operations: CapturedOperation) -> CapturedSlice:
    return CapturedSlice(
        inputs=(), operations=operations, result={"tensor": operations[-1].name}, versions={}, device="cpu"
    )


def x() -> dict[str, str]:
    return {"tensor": "x0"}


def run_script(text: str, folder: Path, files: dict[str, bytes] | None = None) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(text, "utf-8")
    for name, data in (files or {}).items():
        (folder / name).write_bytes(data)
    return subprocess.run([sys.executable, "-I", str(path)], capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("operation_of_b", "code"),
    [
        (call("v0", "aten.mul.Tensor", x(), 0.5), 0),
        (call("v0", "aten.mul.Tensor", x(), 0.25), 1),
        (call("v0", "aten.mul.Tensor", x(), {"float": "nan"}), 1),
    ],
    ids=["same", "scale", "nan"],
)
def test_a_script_ends_with_1_only_if_the_operations_differ(
    operation_of_b: CapturedOperation, code: int, tmp_path: Path
) -> None:
    value = Value("x0", torch.linspace(-1, 1, 32))
    parts = ScriptParts(
        title=['a """ title \\ of B\n'],
        values=[(value, random_source(value))],
        a=Side(captured(call("v0", "aten.mul.Tensor", x(), 0.5)), {"x0": "x0"}),
        b=Side(captured(operation_of_b), {"x0": "x0"}),
        limit=1e-6,
        compares="values",
    )
    done = run_script(write_script(parts), tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("A: error ")


def test_an_error_of_a_script_does_not_end_with_the_exit_code_of_the_fault(tmp_path: Path) -> None:
    value = Value("x0", torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)))
    source = captured_source(value, "r-x0.bin")
    assert source.file is not None
    a, b = (Side(captured(call("v0", "aten.mul.Tensor", x(), factor)), {"x0": "x0"}) for factor in (0.5, 0.25))
    text = write_script(ScriptParts([""], [(value, source)], a, b, 1e-6, "values"))
    missing = run_script(text, tmp_path)
    assert missing.returncode == 2
    assert "r-x0.bin" in missing.stderr
    assert run_script(text, tmp_path, {"r-x0.bin": source.file}).returncode == 1
    for damaged in (source.file[:-100], bytes(len(source.file))):
        assert run_script(text, tmp_path, {"r-x0.bin": damaged}).returncode == 2
    assert run_script(text.replace("aten.mul", "aten.no_operation"), tmp_path).returncode == 2


def test_the_reference_is_in_float64_where_operations_name_a_format(tmp_path: Path) -> None:
    cast = call("v0", "aten._to_copy.default", x(), dtype={"torch": "bfloat16"})
    value = Value("x0", torch.linspace(-1, 1, 32))
    parts = ScriptParts(
        [""], [(value, captured_source(value, ""))], Side(captured(cast), {"x0": "x0"}), None, 1e-6, "values"
    )
    text = write_script(parts).replace("torch.compile(operations_of_a)", "operations_of_a")
    done = run_script(text, tmp_path)
    assert "torch.bfloat16" in done.stdout
    assert 1e-4 < float(done.stdout.split()[2]) < 1e-2


def test_operations_without_effect_on_the_result_are_left_out() -> None:
    first = call("v0", "aten.mul.Tensor", x(), 2.0)
    unused = call("v1", "aten.neg.default", {"tensor": "x1"})
    in_place = call("v2", "aten.add_.Tensor", {"tensor": "v0"}, 1.0)
    last = call("v3", "aten.neg.default", {"tensor": "v0"})
    sliced = captured(first, unused, in_place, last)
    assert needed_inputs(sliced) == set()
    parts = ScriptParts([""], [], Side(sliced, {"x0": "x0"}), None, 1e-6, "values")
    text = write_script(parts)
    assert [line.split("torch.ops.")[1].split("(")[0] for line in text.splitlines() if "torch.ops." in line] == [
        "aten.mul.Tensor",
        "aten.add_.Tensor",
        "aten.neg.default",
    ]


def test_arguments_that_cannot_be_written_are_refused() -> None:
    reduced = captured(call("v0", "c10d.allreduce_.default", x(), {"opaque": "ScriptObject"}))
    with pytest.raises(NotEnoughEvidence):
        write_script(ScriptParts([""], [], Side(reduced, {"x0": "x0"}), None, 1e-6, "values"))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool]),
    transposed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_captured_values_are_written_exactly(shape: list[int], dtype: Any, transposed: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = (torch.randn(shape, generator=generator) * 5).to(dtype)
    if dtype.is_floating_point and tensor.numel():
        tensor.view(-1)[0] = float("-inf")
    tensor = tensor.transpose(0, -1) if transposed and tensor.dim() else tensor
    source = captured_source(Value("x0", tensor), "x0.bin")
    parts = ScriptParts(
        [""],
        [(Value("x0", tensor), source)],
        Side(captured(call("v0", "aten.clone.default", x())), {"x0": "x0"}),
        None,
        1.0,
        "values",
    )
    source_lines = write_script(parts).partition("def operations_of_a")[0].partition("torch.manual_seed(0)\n")
    scope: dict[str, Any] = {}
    lines = (source_lines[0] + source_lines[2]).replace("torch.set_grad_enabled(False)\n", "")
    exec(lines, scope)  # noqa: S102  the script that the test wrote
    assert torch.is_grad_enabled()
    restored = scope["x0"]
    assert (restored.shape, restored.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(restored, tensor)
    if tensor.numel() > 8:
        assert restored.stride() == tensor.stride()


def test_inputs_are_shared_only_if_their_values_are_close() -> None:
    a, b = torch.randn(64), torch.randn(64)
    values_a = [Value("a_x0", a), Value("a_x1", b)]
    values_b = [Value("x0", b.bfloat16()), Value("x1", a * (1 + 1e-7)), Value("x2", a)]
    assert shared_names(values_a, values_b, 1e-6) == {"a_x0": "x1", "a_x1": "x0"}
    assert shared_names(values_a[:1], [Value("x0", -a)], 1e-6) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "operation"),
    [("epsilon", "native_layer_norm"), ("scale", "mul.Tensor"), ("sign", "neg"), ("residual", "add.Tensor")],
)
def test_a_fault_of_a_script_is_shown_by_a_reproducer(fault: str, operation: str, tmp_path: Path) -> None:
    good = [sys.executable, str(SCRIPT)]
    api.record_numerics(good, tmp_path / "a", steps="0", replicas=2)
    api.record_numerics([*good, "--fault", fault], tmp_path / "b", steps="0", replicas=0)
    with pytest.raises(BadInput):
        api.reproduce_numerics(tmp_path / "a", tmp_path / "b", tmp_path / "r.py")
    result = api.reproduce_numerics(tmp_path / "a", tmp_path / "b", tmp_path / "r.py", rerun=True)
    assert result.shows_fault, result.text
    assert result.inputs == "random"
    assert operation in result.text
    assert max(result.operations_a, result.operations_b) <= 3
    assert result.error_a is not None
    assert result.error_b is not None
    assert result.error_a <= result.limit < result.error_b
    done = run_script((tmp_path / "r.py").read_text("utf-8"), tmp_path)
    assert done.returncode == 1
    with pytest.raises(NotEnoughEvidence):
        api.reproduce_numerics(tmp_path / "a", tmp_path / "a", tmp_path / "other.py", rerun=True)


@pytest.mark.slow
def test_a_script_that_changed_since_its_record_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SCRIPT.read_text("utf-8")
    Path("train.py").write_text(text, "utf-8")
    api.record_numerics([sys.executable, "train.py"], "a", steps="0", replicas=2)
    Path("train.py").write_text(text.replace("nn.functional.gelu", "nn.functional.relu"), "utf-8")
    api.record_numerics([sys.executable, "train.py"], "b", steps="0", replicas=0)
    with refused(BadInput, "train.py", "a"):
        api.reproduce_numerics("a", "b", "r.py", rerun=True)
    with refused(BadInput, "train.py", "a"):
        api.bisect_numerics("a", [sys.executable, "train.py", "--fault", "scale"], "trials", rerun=True)


@pytest.mark.slow
def test_a_fault_of_the_optimizer_that_its_noise_hides_is_shown_by_its_update(tmp_path: Path) -> None:
    """The first step of AdamW divides a gradient by its size, so that rounding decides the sign of small ones: weights
    have large limits, and the missing decay of step 0 is seen at the operations of step 1 that read them."""
    good = [sys.executable, str(SCRIPT)]
    api.record_numerics(good, tmp_path / "a", steps="0-1", replicas=3)
    api.record_numerics([*good, "--fault", "decay"], tmp_path / "b", steps="0-1", replicas=0)
    first = api.compare_numerics(tmp_path / "a", tmp_path / "b").first
    assert first is not None
    assert (first.tensor.step, first.tensor.operation) == (1, "aten.embedding")
    weight = first.read_weight
    assert weight is not None
    assert (weight.module, weight.name, weight.step) == ("Decoder.embedding", "weight", 0)
    assert 0 < (weight.error or 0) <= (weight.limit or 0)
    result = api.reproduce_numerics(tmp_path / "a", tmp_path / "b", tmp_path / "r.py", rerun=True)
    assert result.shows_fault, result.text
    assert (result.tensor.step, result.tensor.phase, result.tensor.module) == (0, "optimizer", "Decoder.embedding")
    assert (result.error_a or 1) < 1e-6 < (result.error_b or 0) < 1e-4
    report = api.compare_numerics(tmp_path / "a", tmp_path / "b", reproducer=tmp_path / "r.py")
    assert report.reproducer == result.text
