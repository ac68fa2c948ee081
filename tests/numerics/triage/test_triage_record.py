"""The diagnosis of records: origins of non-finite values, growing gradients, and operations that do not repeat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.errors import BadInput, MissingFile
from trainyard.numerics.record_files import FORMAT, RecordWriter
from trainyard.numerics.tensor_record import NonFinite, RecordHeader, TensorRecord
from trainyard.numerics.triage.nonreproducible import switch_for
from trainyard.numerics.triage.triage_record import triage_record


def write(folder: Path, records: list[TensorRecord], steps: tuple[int, ...] = (0, 1, 2)) -> Path:
    header = RecordHeader(
        format=FORMAT, variant="plain", rank=0, ranks=1, level="operations", steps=steps, device="cpu"
    )
    with RecordWriter(folder, header) as writer:
        for record in records:
            writer.write(record)
    return folder


def operation(index: int, name: str, inputs: tuple[int, ...] = (), step: int = 0, **fields: object) -> TensorRecord:
    values = {"hash": f"{index:x}", "shape": (4,), "dtype": "float32", "norm": 1.0, **fields}
    return TensorRecord(
        index=index, step=step, phase="forward", role="output", operation=f"aten.{name}", inputs=inputs, **values
    )


def gradient(step: int, module: str, norm: float) -> TensorRecord:
    return TensorRecord(
        index=100 + len(module),
        step=step,
        phase="optimizer",
        role="gradient",
        module=module,
        name="weight",
        norm=norm,
        hash="1",
        shape=(4,),
        dtype="float32",
    )


MASK = NonFinite(negative=6, masked=True)


def test_infinities_of_a_mask_are_followed_and_do_not_count(tmp_path: Path) -> None:
    records = [
        operation(0, "mm"),
        operation(1, "full", nonfinite=MASK),
        operation(2, "add", (0, 1), nonfinite=NonFinite(negative=6)),
        operation(3, "mul", (2,), nonfinite=NonFinite(negative=6)),
        operation(4, "_softmax", (3,)),
    ]
    assert triage_record(write(tmp_path / "a", records)).nonfinite is None
    log = operation(5, "log", (4,), nonfinite=NonFinite(negative=1))
    origin = triage_record(write(tmp_path / "b", [*records, log])).nonfinite
    assert origin is not None
    assert (origin.tensor.operation, [tensor.operation for tensor in origin.inputs]) == ("aten.log", ["aten._softmax"])
    softmax = operation(4, "_softmax", (3,), nonfinite=NonFinite(nan=4))
    origin = triage_record(write(tmp_path / "c", [*records[:4], softmax])).nonfinite
    assert origin is not None
    assert (origin.tensor.operation, origin.tensor.nan, origin.affected) == ("aten._softmax", 4, 0)


def test_modules_are_listed_by_the_growth_of_their_gradients(tmp_path: Path) -> None:
    records = [
        gradient(step, module, norm)
        for step, norms in enumerate([(1.0, 2.0), (1.0, 2.0), (1.1, 40.0)])
        for module, norm in zip(("calm", "growing"), norms)
    ]
    triage = triage_record(write(tmp_path / "a", records))
    assert [(module.module, module.growth, module.step) for module in triage.gradients] == [
        ("growing", pytest.approx(20.0), 2),
        ("calm", pytest.approx(1.1), 2),
    ]
    assert [step.gradient_norm for step in triage.steps] == pytest.approx([5**0.5, 5**0.5, (1.1**2 + 1600) ** 0.5])
    assert triage.exit_code == 0


def test_only_operations_with_equal_inputs_are_not_reproducible(tmp_path: Path) -> None:
    first = [operation(0, "mm"), operation(1, "index_add", (0,)), operation(2, "mul", (1,)), operation(3, "sum", (0,))]
    second = [first[0], *(operation(index, name, inputs, hash="ff") for index, name, inputs in _LATER), first[3]]
    triage = triage_record(write(tmp_path / "a", first), write(tmp_path / "b", second))
    assert triage.determinism is not None
    assert [(each.operation, each.count) for each in triage.determinism.operations] == [("aten.index_add", 1)]
    assert (triage.determinism.compared, triage.determinism.identical) == (4, 2)
    assert triage.exit_code == 1


_LATER = ((1, "index_add", (0,)), (2, "mul", (1,)))


@pytest.mark.parametrize(
    ("name", "device", "switch"),
    [
        ("aten.index_add", "NVIDIA H100", "use_deterministic_algorithms"),
        ("aten.mm", "NVIDIA H100", "CUBLAS_WORKSPACE_CONFIG"),
        ("aten.mm", "cpu", "OMP_NUM_THREADS"),
        ("aten.native_dropout", "cpu", "manual_seed"),
        ("custom.kernel", "NVIDIA H100", "use_deterministic_algorithms"),
    ],
)
def test_each_operation_has_a_switch_with_a_source(name: str, device: str, switch: str) -> None:
    entry = switch_for(name, device)
    assert switch in entry.switch
    assert entry.source.startswith("https://")


def test_bad_records_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a", [operation(0, "mm")], (0,))
    other = write(tmp_path / "b", [operation(0, "mm", step=1)], (1,))
    with pytest.raises(BadInput):
        triage_record(first, other)
    with pytest.raises(MissingFile):
        triage_record(tmp_path / "none")


SCRIPT = """
import time, torch
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scale = torch.ones(4)
for step in range(3):
    out = model(torch.randn(6, 8)) + torch.zeros(4).masked_fill(torch.arange(4) == 9, float("-inf"))
    if step == 1:
        scale.numpy()[0] = 1 + (time.time_ns() % 1_000_000) * 1e-6
    (out * scale).pow(2).mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_script_that_writes_memory_behind_torch_is_not_reproducible(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, "utf-8")
    trainyard = Path(sys.executable).with_name("trainyard")
    for name in ("a", "b"):
        command = [trainyard, "numerics", "record", "--replicas", "0", "--out", tmp_path / name, "--"]
        subprocess.run([*map(str, command), sys.executable, str(script)], check=True, capture_output=True)
    triage = triage_record(tmp_path / "a", tmp_path / "b")
    assert triage.nonfinite is None
    assert triage.determinism is not None
    assert [(each.operation, each.tensor.step) for each in triage.determinism.operations] == [("aten.mul", 1)]
    assert (triage.determinism.random_state_step, triage.determinism.data_step) == (None, None)
    losses = [step.loss for step in triage.steps]
    assert all(loss is not None and loss != 1.0 for loss in losses)


def test_random_states_that_no_tensor_depends_on_do_not_count(tmp_path: Path) -> None:
    def records(state: str) -> list[TensorRecord]:
        random_state = TensorRecord(index=0, step=0, phase="forward", role="random_state", hash=state, shape=(8,))
        return [random_state, operation(1, "mm")]

    first, again = write(tmp_path / "first", records("1")), write(tmp_path / "again", records("2"))
    triage = triage_record(first, again)
    assert triage.determinism is not None
    assert (triage.determinism.compared, triage.determinism.identical) == (1, 1)
    assert triage.determinism.random_state_step == 0
    assert triage.exit_code == 0
