"""The float64 variant of scripts that load their weights: it is that of a script converted by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from trainyard.numerics.record.float64_mode import Float64  # noqa: E402
from trainyard.numerics.record.recorder import Recorder  # noqa: E402
from trainyard.numerics.tensor_record import TensorRecord  # noqa: E402

WIDTH = 8
State = dict[str, Any]


def network() -> nn.Module:
    """A network with parameters and buffers, of which one has integers."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))


def trained_state() -> State:
    """The state of a network that was trained in float32."""
    torch.manual_seed(1)
    model = network()
    for _ in range(3):
        model(torch.randn(5, WIDTH))
    return model.state_dict()


def train(model: nn.Module, dtype: Any = torch.float32) -> list[float]:
    """The losses of three steps on float32 batches, which are converted to `dtype`."""
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(3):
        loss = model(torch.randn(16, WIDTH).to(dtype)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def copied(state: State) -> nn.Module:
    model = network()
    model.load_state_dict(state)
    return model


def assigned(state: State) -> nn.Module:
    with torch.device("meta"):
        model = network()
    model.load_state_dict(state, assign=True)
    return model


def set_as_data(state: State) -> nn.Module:
    model = network()
    for name, value in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        value.data = state[name]
    return model


class FromTorch:
    """Files of `torch.save`."""

    def __init__(self, **options: Any) -> None:
        self._save = {"_use_new_zipfile_serialization": not options.pop("legacy", False)}
        self._load = options

    def save(self, state: State, path: Path) -> None:
        torch.save(state, path, **self._save)

    def load(self, path: Path) -> State:
        return torch.load(path, **self._load)


class FromSafetensors:
    """Files of safetensors."""

    def save(self, state: State, path: Path) -> None:
        pytest.importorskip("safetensors.torch").save_file(state, path)

    def load(self, path: Path) -> State:
        return pytest.importorskip("safetensors.torch").load_file(path)


FORMATS = {
    "torch": FromTorch(),
    "pickled": FromTorch(weights_only=False),
    "mapped": FromTorch(mmap=True),
    "legacy": FromTorch(legacy=True),
    "safetensors": FromSafetensors(),
}


@pytest.mark.parametrize("build", [copied, assigned, set_as_data], ids=lambda build: build.__name__)
@pytest.mark.parametrize("file", FORMATS.values(), ids=FORMATS.keys())
def test_float64_run_of_loaded_weights_is_that_of_a_converted_script(
    tmp_path: Path, file: FromTorch | FromSafetensors, build: Callable[[State], nn.Module]
):
    path = tmp_path / "weights"
    file.save(trained_state(), path)
    by_hand = train(build(file.load(path)).double(), torch.float64)
    records: list[TensorRecord] = []
    with Float64() as mode, Recorder(records.extend, range(3)):
        model = build(file.load(path))
        losses = train(model)
    assert losses == pytest.approx(by_hand, rel=1e-12)
    assert losses != pytest.approx(train(build(file.load(path))), rel=1e-12)
    assert {value.dtype for value in model.parameters()} == {torch.float64}
    assert {value.dtype for value in model.buffers()} == {torch.float64, torch.int64}
    weights = [record for record in records if record.role in ("weight", "gradient", "optimizer_state")]
    assert {record.dtype for record in weights if not record.name.endswith(".step")} == {"float64"}
    assert not mode.narrow


def test_a_pickled_model_is_widened_and_keeps_shared_parameters(tmp_path: Path):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model[1].weight = model[0].weight
    torch.save(model, tmp_path / "model")
    with Float64():
        loaded = torch.load(tmp_path / "model", weights_only=False)
    assert {value.dtype for value in loaded.parameters()} == {torch.float64}
    assert loaded[1].weight is loaded[0].weight
    assert torch.equal(loaded[0].weight, model[0].weight.double())


def test_batches_of_a_data_loader_process_are_widened():
    values = torch.randn(6, WIDTH)
    with Float64():
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(values), batch_size=3, num_workers=1)
        batches = torch.cat([batch for (batch,) in loader])
    assert batches.dtype == torch.float64
    assert torch.equal(batches, values.double())


def test_loading_is_unchanged_after_the_mode(tmp_path: Path):
    functions = torch.load, torch.serialization.load, torch._utils._rebuild_tensor
    state = trained_state()
    torch.save(state, tmp_path / "weights")
    with Float64():
        pass
    assert (torch.load, torch.serialization.load, torch._utils._rebuild_tensor) == functions
    assert torch.load(tmp_path / "weights")["0.weight"].dtype == torch.float32
    assert copy.deepcopy(state)["0.weight"].dtype == torch.float32


def test_bytes_are_reinterpreted_in_the_format_of_the_script():
    numbers = [1.0, -2.5, 0.1]
    bits = torch.tensor(numbers).view(torch.int32)
    with Float64():
        values = torch.tensor(numbers)
        assert values.view(torch.int32).tolist() == bits.tolist()
        assert bits.view(torch.float32).tolist() == torch.tensor(numbers, dtype=torch.float32).tolist()
        assert bits.view(torch.float32).dtype == torch.float64
