"""Trainings whose values are stored, and replaced by those of another run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainyard.errors import BadFile
from trainyard.numerics.bisect.replaced_values import read_replaced
from trainyard.numerics.bisect.value_index import read_index
from trainyard.numerics.tensor_record import TensorKey, TensorRecord

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.numerics.bisect.independent_faults import Network  # noqa: E402
from trainyard.numerics.bisect.replace_values import ReplacingRecorder  # noqa: E402
from trainyard.numerics.bisect.store_values import ValueRecorder  # noqa: E402
from trainyard.numerics.bisect.value_files import ValueReader, ValueWriter  # noqa: E402
from trainyard.numerics.record.recorder import Recorder  # noqa: E402

STEPS = range(2)


class Attention(nn.Module):
    """Shares one input among three modules, and returns several tensors, one of which is expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return x + mixed, mixed.mean(-1, keepdim=True).expand_as(x)


class Mixed(nn.Module):
    """In-place activations, modules that return their input, a module that is called twice, a recomputed one."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.relu, self.identity = Attention(), nn.ReLU(inplace=True), nn.Identity()
        self.shared, self.norm, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed, mean = self.attention(x)
        hidden = self.relu(self.shared(self.identity(mixed))) + mean
        hidden = checkpoint(self.shared, hidden, use_reentrant=False)
        return self.head(self.norm(hidden.transpose(1, 2)).transpose(1, 2))


def mixed() -> tuple[nn.Module, list[Tensor]]:
    return Mixed(), [torch.randn(4, 5, 8) for _ in STEPS]


def network() -> tuple[nn.Module, list[Tensor]]:
    return Network(set()), [torch.randint(0, 50, (4, 9)) for _ in STEPS]


def train(
    make: Callable[[], tuple[nn.Module, list[Tensor]]], change: Callable[[nn.Module], object], recorder: Any
) -> nn.Module:
    """Trains two steps. `change`: of the model, before."""
    torch.manual_seed(0)
    model, batches = make()
    change(model)
    with recorder:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for batch in batches:
            model(batch.clone()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def unchanged(model: nn.Module) -> None:
    pass


def halve(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(0.5)


def hashes(records: Iterable[TensorRecord]) -> dict[TensorKey, str]:
    return {record.key: record.hash for record in records}


@pytest.mark.parametrize("make", [mixed, network])
def test_replacing_values_by_their_own_changes_no_bit(
    make: Callable[[], tuple[nn.Module, list[Tensor]]], tmp_path: Path
) -> None:
    train(make, unchanged, ValueRecorder(tmp_path, STEPS))
    plain: list[TensorRecord] = []
    replaced: list[TensorRecord] = []
    first = train(make, unchanged, Recorder(plain.extend, STEPS))
    again = train(make, unchanged, ReplacingRecorder(tmp_path, tmp_path, replaced.extend, STEPS))
    assert hashes(plain) == hashes(record for record in replaced if record.role != "input")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters()))
    counts = read_replaced(tmp_path)
    assert counts.missing == 0
    assert counts.kept <= 2 * len(STEPS)  # the expanded output
    assert counts.replaced > 100


@pytest.mark.parametrize("make", [mixed, network])
def test_other_weights_are_recorded_and_then_replaced(
    make: Callable[[], tuple[nn.Module, list[Tensor]]], tmp_path: Path
) -> None:
    plain: list[TensorRecord] = []
    replaced: list[TensorRecord] = []
    first = train(make, unchanged, ValueRecorder(tmp_path, STEPS))
    train(make, unchanged, Recorder(plain.extend, STEPS))
    second = train(make, halve, ReplacingRecorder(tmp_path, tmp_path, replaced.extend, STEPS))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    of_a, of_b = hashes(plain), hashes(record for record in replaced if record.role != "input")
    assert of_a.keys() == of_b.keys()
    differing = {key for key in of_a if of_a[key] != of_b[key]}
    assert differing
    assert {(key.role, key.phase, key.step) for key in differing} == {("weight", "forward", 0)}


@given(
    tensors=st.lists(
        st.tuples(
            st.sampled_from(["float32", "bfloat16", "float64", "int64", "bool", "complex64", "float8_e4m3fn"]),
            st.lists(st.integers(0, 4), max_size=3),
            st.integers(0, 2),
        ),
        max_size=12,
    )
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_stored_values_are_read_with_the_same_bits(
    tensors: list[tuple[str, list[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("values")
    writer = ValueWriter(folder, 3)
    written: dict[TensorKey, Tensor] = {}
    for number, (dtype, shape, seed) in enumerate(tensors):
        torch.manual_seed(seed)
        values = (torch.randn(shape) * 3).to(getattr(torch, dtype))
        key = TensorKey(0, "forward", "Network", "", "output", "", number, 0)
        writer.write(key, values)
        written[key] = values
    writer.flush()
    reader = ValueReader(folder, 3)
    assert [stored.key for stored in read_index(folder, 3).tensors] == list(written)
    for key, values in written.items():
        read = reader.read(key)
        assert read is not None
        assert (read.dtype, read.shape) == (values.dtype, values.shape)
        assert torch.equal(read.view(-1).view(torch.uint8), values.view(-1).view(torch.uint8))
    stored = (folder / "rank3.bin").stat().st_size
    different = {values.view(-1).view(torch.uint8).numpy().tobytes() for values in written.values() if values.numel()}
    assert stored == sum(map(len, different))
    assert reader.read(TensorKey(1, "forward", "Network", "", "output", "", 0, 0)) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_a_single_element_with_a_stride_is_stored(dtype: torch.dtype, tmp_path: Path) -> None:
    """torch takes a tensor of one element for contiguous, whatever its stride is."""
    values = torch.tensor([3, 4, 5, 6]).to(dtype).view(1, 4)[:, ::2][:, 1:]
    assert values.stride(-1) == 2
    key = TensorKey(0, "forward", "Network", "", "output", "", 0, 0)
    writer = ValueWriter(tmp_path, 0)
    writer.write(key, values)
    writer.flush()
    read = ValueReader(tmp_path, 0).read(key)
    assert read is not None
    assert torch.equal(read, values)


def _damage_index(text: bytes) -> bytes:
    return text[: len(text) // 2]


def _other_dtype(text: bytes) -> bytes:
    return text.replace(b'"float32"', b'"Tensor"')


def _beyond_the_end(text: bytes) -> bytes:
    return text.replace(b'"offset":0', b'"offset":99999999')


def _huge(text: bytes) -> bytes:
    return text.replace(b'"shape":[4]', f'"shape":[{1 << 62}]'.encode())


def _negative(text: bytes) -> bytes:
    return text.replace(b'"shape":[4]', b'"shape":[-4]')


@pytest.mark.parametrize("damage", [_damage_index, _other_dtype, _beyond_the_end, _huge, _negative])
def test_damaged_files_are_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    key = TensorKey(0, "forward", "Network", "", "output", "", 0, 0)
    writer = ValueWriter(tmp_path, 0)
    writer.write(key, torch.full((4,), math.pi))
    writer.flush()
    index = tmp_path / "rank0.json"
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(BadFile):
        ValueReader(tmp_path, 0).read(key)


def test_a_limit_of_bytes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.numerics.bisect.value_files.MOST_BYTES", 20)
    writer = ValueWriter(tmp_path, 0)
    for call in range(3):
        writer.write(TensorKey(0, "forward", "", "", "output", "", call, 0), torch.full((4,), float(call)))
    writer.flush()
    index = read_index(tmp_path, 0)
    assert len(index.tensors) == 1
    assert index.failure
