"""The recorder: it names operations, and changes nothing; float64 and jittered runs differ by rounding only."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainyard.numerics.tensor_record import TensorRecord

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.numerics.record.small_training import Classifier, train  # noqa: E402
from trainyard.numerics.record.float64_mode import Float64  # noqa: E402
from trainyard.numerics.record.recorder import Recorder  # noqa: E402
from trainyard.numerics.record.tensor_writers import TensorWriters  # noqa: E402
from trainyard.numerics.record.user_location import _shown_name  # noqa: E402
from trainyard.numerics.ulp_jitter import UlpJitter  # noqa: E402


class ObservedOperations(TorchDispatchMode):
    """Lists the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def recorded(
    mode: AbstractContextManager[Any] | None = None, level: Any = "operations", **options: Any
) -> tuple[list[float], list[TensorRecord]]:
    """The losses and the records of two steps."""
    records: list[TensorRecord] = []
    with mode or nullcontext(), Recorder(records.extend, range(2), level):
        losses = train(2, **options)
    return losses, records


def values(record: TensorRecord) -> np.ndarray:
    return np.frombuffer(record.sketch, "<f8")


def distance(a: Sequence[TensorRecord], b: Sequence[TensorRecord]) -> float:
    """The largest relative distance of two runs' values in the first forward pass."""
    others = {record.key: record for record in b}
    pairs = [
        (record, others[record.key])
        for record in a
        if record.key in others and record.step == 0 and record.phase == "forward" and record.role == "output"
    ]
    assert len(pairs) > 10
    return max(np.linalg.norm(values(x) - values(y)) / max(float(np.linalg.norm(values(y))), 1e-9) for x, y in pairs)


@pytest.mark.parametrize("level", ["operations", "modules", "steps"])
def test_recording_changes_no_bit(level):
    losses, records = recorded(level=level)
    assert losses == train(2)
    assert {record.step for record in records} == {0, 1}
    assert [record.index for record in records if record.step == 1] == list(
        range(sum(record.step == 1 for record in records))
    )


class Halves(torch.nn.Module):
    """Two outputs of one autograd node."""

    def forward(self, values):
        return values.unbind(0)


def test_output_without_gradient_leaves_the_training_as_it_is():
    records: list[TensorRecord] = []
    weight = torch.ones(2, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with Recorder(records.extend, range(1)):
        first, _ = Halves()(weight)
        first.sum().backward()
        optimizer.step()
    assert weight.tolist() == [[0.0] * 3, [1.0] * 3]
    gradients = [r.output for r in records if r.role == "gradient" and r.module == "Halves"]
    assert gradients == [0]


def test_locations_in_installed_packages_are_relative_to_their_folder():
    assert _shown_name("/env/lib/python3.11/site-packages/models/llama.py") == "models/llama.py"
    assert _shown_name("/home/user/train.py") == "/home/user/train.py"
    assert _shown_name(torch.nn.__file__) == ""


def test_operations_are_named_by_module_in_both_passes():
    _, records = recorded()
    named = {(r.phase, r.module, r.operation) for r in records if r.operation and r.step == 0}
    for layer in ("Classifier.layers.0", "Classifier.layers.1"):
        assert ("forward", f"{layer}.norm", "aten.native_layer_norm") in named
        assert ("backward", f"{layer}.norm", "aten.native_layer_norm_backward") in named
        assert ("forward", layer, "aten.gelu") in named
        assert ("backward", layer, "aten.gelu_backward") in named
        assert ("backward", f"{layer}.up", "aten.mm") in named
    assert ("backward", "", "aten.nll_loss_backward") in named
    weights = {(r.module, r.name) for r in records if r.role == "weight"}
    assert weights == {
        (".".join(["Classifier", *name.split(".")[:-1]]), name.rpartition(".")[2])
        for name, _ in Classifier().named_parameters()
    }
    states = Counter(r.name for r in records if r.role == "optimizer_state" and r.module == "Classifier.head")
    assert states == {f"{name}.{key}": 2 for name in ("weight", "bias") for key in ("step", "exp_avg", "exp_avg_sq")}


def test_keys_are_unique_and_locations_are_the_users():
    _, records = recorded()
    assert max(Counter(record.key for record in records).values()) == 1
    forward = [record for record in records if record.phase == "forward" and record.operation]
    assert forward
    assert all("small_training.py:" in record.location for record in forward)


def test_gradients_of_modules_are_recorded():
    _, records = recorded()
    gradients = {record.module for record in records if record.role == "gradient" and record.phase == "backward"}
    assert {"Classifier", "Classifier.head", "Classifier.layers.0.down", "Classifier.embedding"} <= gradients


def test_recomputed_forward_passes_are_not_recorded():
    plain_losses, plain = recorded()
    losses, checkpointed = recorded(model=None, wrap=_checkpointing)
    assert losses == pytest.approx(plain_losses, rel=1e-6)
    forward = [r.key for r in plain if r.phase == "forward" and r.module]
    assert [r.key for r in checkpointed if r.phase == "forward" and r.module] == forward
    backward = {r.key for r in plain if r.phase == "backward" and "layers" in r.module and r.operation}
    assert {r.key for r in checkpointed if r.phase == "backward" and "layers" in r.module and r.operation} == backward


def _checkpointing(model: Any) -> Any:
    model.checkpoints = True
    return model


def test_float64_has_the_same_random_numbers_and_less_rounding():
    losses, plain = recorded()
    wide_losses, wide = recorded(Float64())
    assert wide_losses == pytest.approx(losses, rel=1e-5)
    assert wide_losses != losses
    assert {r.dtype for r in wide if r.module and r.phase == "backward"} == {"float64"}
    masks = [r for r in plain if r.operation == "aten.bernoulli_"]
    others = {r.key: r for r in wide}
    assert masks
    assert all(values(r).tobytes() == values(others[r.key]).tobytes() for r in masks)
    assert 1e-9 < distance(plain, wide) < 1e-4


def test_replicas_differ_by_rounding():
    _, plain = recorded()
    _, first = recorded(UlpJitter(1, 2, all_operations=True))
    _, second = recorded(UlpJitter(2, 2, all_operations=True))
    _, again = recorded(UlpJitter(1, 2, all_operations=True))
    assert 1e-8 < distance(first, plain) < 1e-4
    assert distance(first, second) > 0
    assert [r.hash for r in first] == [r.hash for r in again]


def test_a_larger_limit_of_rounding_moves_results_further():
    _, plain = recorded()
    near, far = (recorded(UlpJitter(1, ulps, all_operations=True))[1] for ulps in (1, 64))
    assert distance(far, plain) > 10 * distance(near, plain)


@pytest.mark.slow
def test_a_compiled_module_is_recorded_at_its_boundary():
    _, plain = recorded()
    _, compiled = recorded(wrap=lambda model: torch.compile(model, backend="aot_eager"))
    boundary = {r.key for r in plain if r.module == "Classifier" and not r.operation and not r.name}
    assert boundary
    assert boundary <= {r.key for r in compiled}
    assert {r.key for r in plain if r.role == "weight"} <= {r.key for r in compiled}
    assert not [r for r in compiled if r.operation and "layers" in r.module and r.phase == "forward"]


@pytest.mark.slow
def test_a_module_compiled_in_place_is_recorded_at_its_boundary():
    def compile_layer(model: Any) -> Any:
        model.layers[1].compile(backend="aot_eager")
        return model

    compile_method = torch.nn.Module.compile
    losses, plain = recorded()
    compiled_losses, compiled = recorded(wrap=compile_layer)
    assert torch.nn.Module.compile is compile_method
    assert compiled_losses == pytest.approx(losses)
    boundaries = {r.key for r in plain if not r.operation and not r.module.startswith("Classifier.layers.1.")}
    assert {key for key in boundaries if key.module == "Classifier.layers.1"}
    assert boundaries <= {r.key for r in compiled}
    assert {r.module for r in compiled if r.operation and r.phase == "forward"} >= {"Classifier.layers.0.up"}
    assert not [r for r in compiled if r.operation and "layers.1" in r.module and r.phase == "forward"]


def test_the_origin_of_infinities_is_noted():
    records: list[TensorRecord] = []
    with Recorder(records.extend, range(1)):
        scores = torch.zeros(4, 4)
        scores.masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
        torch.log(torch.zeros(3))
        train(1)
    by_name = {record.operation: record for record in records if record.nonfinite}
    assert by_name["aten.masked_fill"].nonfinite.masked
    assert by_name["aten.masked_fill"].nonfinite.negative == 6
    assert not by_name["aten.log"].nonfinite.masked
    assert by_name["aten.log"].nonfinite.negative == 3


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.numerics.record.small_training import train
print(*train(2))
"""


@pytest.mark.slow
def test_a_command_is_recorded_in_all_variants(tmp_path: Path):
    from trainyard import api
    from trainyard.errors import BadInput, CommandFailed
    from trainyard.numerics.record_files import read_variant, variants

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[3])))
    report = api.record_numerics([sys.executable, str(script)], tmp_path / "a", replicas=1, steps="0-1")
    assert variants(tmp_path / "a") == ["float64", "plain", "replica-1"]
    assert [run.ranks for run in report.runs] == [1, 1, 1]
    plain = read_variant(tmp_path / "a", "plain")[0]
    assert len(plain.tensors) == report.runs[0].records
    assert {tensor.step for tensor in plain.tensors} == {0, 1}
    with pytest.raises(BadInput):
        api.record_numerics([sys.executable, str(script)], tmp_path / "a", replicas=0)
    with pytest.raises(BadInput):
        api.record_numerics([sys.executable, "-c", "import torch"], tmp_path / "b", replicas=0)
    with pytest.raises(CommandFailed):
        api.record_numerics([sys.executable, "-c", "import torch, sys; sys.exit(3)"], tmp_path / "c", replicas=0)
    with pytest.raises(BadInput):
        api.record_numerics(["no-such-command"], tmp_path / "d")
    with pytest.raises(BadInput):
        api.record_numerics([sys.executable, str(script)], tmp_path / "e", steps="5-2")


def test_a_training_without_modules_is_recorded():
    records: list[TensorRecord] = []
    with Recorder(records.extend, range(2)):
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            (weight * torch.arange(3.0)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {record.step for record in records} == {0, 1}
    assert {record.name for record in records if record.role == "weight"} == {"parameter 0"}
    assert max(Counter(record.key for record in records).values()) == 1


def test_an_error_of_the_recorder_does_not_reach_the_training(monkeypatch, capsys):
    def fail(tensor: object) -> None:
        raise RuntimeError("17 sums")

    monkeypatch.setattr("trainyard.numerics.record.recorder.summarise", fail)
    losses, _ = recorded()
    assert losses == train(2)
    assert capsys.readouterr().err.count("17 sums") == 1


def test_an_error_of_writing_ends_the_recording(capsys):
    def fail(records: object) -> None:
        raise OSError("no space for 17 bytes")

    with Recorder(fail, range(2)):
        losses = train(2)
    assert losses == train(2)
    assert capsys.readouterr().err.count("17 bytes") == 1


def narrow_operation(name: str) -> Any:
    """An operation that has no float64 kernel, and fails for negative numbers in any format."""

    def double_in_place(x: torch.Tensor) -> None:
        if x.dtype == torch.float64 or (x < 0).any():
            raise RuntimeError(f"{name}: {x.dtype}")
        x.mul_(2)

    return torch.library.custom_op(f"trainyard_test::{name}", double_in_place, mutates_args=("x",))


def test_operations_without_a_float64_kernel_compute_in_the_format_of_the_script():
    operation = narrow_operation("narrow")
    with Float64() as mode:
        values = torch.ones(3)
        assert values.dtype == torch.float64
        operation(values)
        assert values.tolist() == [2.0] * 3
        assert {name.partition(".")[0] for name in mode.narrow} == {"trainyard_test"}


def test_an_error_of_the_script_is_raised_in_float64():
    operation = narrow_operation("failing")
    with Float64() as mode:
        with pytest.raises(RuntimeError, match="failing"):
            operation(-torch.ones(3))
        with pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        assert not mode.narrow


def test_inputs_of_an_operation_are_the_records_it_was_computed_from():
    records: list[TensorRecord] = []
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(records.extend, [0]):
        x = torch.ones(4, 4)
        doubled = x * 2
        del x
        hidden = model(doubled.t().contiguous())
        freed = torch.empty(4, 4)
        (hidden[:2] + hidden[2:]).sum().add(freed.zero_().sum()).backward()
        optimizer.step()
    by_index = {record.index: record for record in records}

    def operations(record: TensorRecord) -> set[str]:
        return {by_index[index].operation or by_index[index].role for index in record.inputs}

    forward = [record for record in records if record.operation and record.phase == "forward" and record.call == 0]
    inputs = {record.operation: operations(record) for record in forward}
    assert inputs["aten.mul"] == {"aten.ones"}
    assert inputs["aten.clone"] == {"aten.mul"}
    assert inputs["aten.addmm"] == {"data"}
    assert inputs["aten.add"] == {"output"}
    assert inputs["aten.zero_"] == set()
    assert all(index < record.index for record in records for index in record.inputs)


def line_of(text: str) -> int:
    """The line of this file that has a text."""
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def test_weights_are_recorded_before_the_first_call_and_their_initialisation_is_not():
    records: list[TensorRecord] = []
    with Recorder(records.extend, range(2)):
        train(2)
    initial = [record for record in records if record.role == "weight" and record.phase == "forward"]
    updated = {(r.module, r.name): r for r in records if r.role == "weight" and r.phase == "optimizer" and r.step == 0}
    assert {(record.module, record.name) for record in initial} == updated.keys()
    assert all(record.hash != updated[record.module, record.name].hash for record in initial)
    assert {record.step for record in initial} == {0}
    first = [record for record in records if record.step == 0]
    assert max(record.index for record in initial) < min(r.index for r in first if r.module and r.operation)
    assert all("small_training.py:" in record.location for record in initial if record.name == "bias")
    operations = Counter(r.operation for r in records if r.operation and r.phase == "forward" and not r.module)
    assert operations["aten.randint"] == 2
    assert not {"aten.uniform_", "aten.normal_", "aten.fill_"} & operations.keys()
    assert not {record.index for record in initial} & {index for record in first for index in record.inputs}


def test_an_initial_weight_has_the_line_that_wrote_it():
    records: list[TensorRecord] = []
    with Recorder(records.extend, [0]):
        model = torch.nn.Linear(4, 4)
        torch.nn.init.constant_(model.weight, 0.5)  # the initial values
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            model.bias.add_(1)
        optimizer.step()
    initial = {record.name: record for record in records if record.role == "weight" and record.phase == "forward"}
    assert values(initial["weight"]).tolist() != [0.0] * 64
    assert initial["weight"].mean == 0.5
    assert initial["weight"].location.endswith(f"test_recorder.py:{line_of('# the initial' + ' values')}")
    assert [record.operation for record in records if record.operation == "aten.add_"] == ["aten.add_"]


def test_parameters_without_values_have_no_initial_weight():
    records: list[TensorRecord] = []
    with Recorder(records.extend, [0]):
        model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1))
        model(torch.ones(2, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    initial = {(r.module, r.name) for r in records if r.role == "weight" and r.phase == "forward"}
    assert initial == {("Sequential.1", "weight"), ("Sequential.1", "bias")}
    assert len({r.module for r in records if r.role == "weight"}) == 2


def test_float64_keeps_the_bits_of_the_script_format():
    """Scripts read and change bits of float32 numbers, as our own jobs do to draw their weights."""
    from trainyard.train.model.distributions import _normal

    words = [torch.randint(0, 2**32, (500,), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    expected, numbers = _normal(words, 0.02), torch.randn(64, generator=torch.Generator().manual_seed(0))
    with Float64():
        wide, copied = _normal(words, 0.02), numbers * 1.0
        bits = copied.view(torch.int32)
        bits ^= -(1 << 31)
        assert bits.shape == (64,)
        assert torch.equal(bits.view(torch.float32).float(), -numbers)
    assert wide.dtype == copied.dtype == torch.float64
    assert torch.equal(copied.float(), -numbers)
    assert float((wide - expected).norm() / expected.norm()) < 1e-6


def test_weights_of_a_job_are_drawn_as_in_its_format():
    from tests.train.language_model import small_job, trainer_of
    from trainyard.model import Model

    model = Model(layers=1, hidden_size=16, ffn_hidden_size=32, heads=2, kv_heads=2, head_dim=8)
    expected = trainer_of(small_job(model)).parallel_model.parameters
    with Float64():
        wide = trainer_of(small_job(model)).parallel_model.parameters
    for a, b in zip(expected, wide, strict=True):
        assert b.dtype == torch.float64
        assert float((b - a).detach().norm()) <= 1e-6 * float(a.detach().norm())


def test_tensors_whose_memory_cannot_be_read_have_no_writers():
    dense = torch.eye(3)
    unreadable = [dense.to_sparse(), dense.to_sparse_csr(), dense.to_mkldnn(), torch.empty(2, device="meta")]
    writers = TensorWriters()
    for number, tensor in enumerate([dense, *unreadable]):
        writers.write(tensor, (number,))
    assert [writers.of([tensor]) for tensor in (dense, *unreadable)] == [(0,), (), (), (), ()]


def test_buffers_of_fsdp_are_left_out():
    """Before an all-gather, they are not initialised."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    records: list[TensorRecord] = []
    observed = ObservedOperations()
    try:
        model = fully_shard(torch.nn.Linear(4, 6), mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with observed, Recorder(records.extend, range(1)):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert "fsdp.all_gather_copy_in.default" in observed.names
    operations = {record.operation for record in records}
    assert "aten.addmm" in operations
    assert not any(name.startswith("fsdp.") for name in operations)


def test_operations_in_place_are_recorded_with_their_result() -> None:
    """torch counts the version of a tensor after the operation that changes it."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records: list[TensorRecord] = []
    with Recorder(records.extend, [0]):
        model(torch.randn(16, 8)).sum().backward()
        optimizer.step()
    before, operation, output = (
        next(record for record in records if (record.module, record.operation) == chosen)
        for chosen in (("Sequential.0", "aten.addmm"), ("Sequential.1", "aten.relu_"), ("Sequential.1", ""))
    )
    assert operation.hash == output.hash != before.hash
