"""The matmul rate of a run: measured by its first attempt, and again if the conditions have changed."""

from itertools import count
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tests.ranks import on_ranks  # noqa: E402
from trainyard.machine import Claim  # noqa: E402
from trainyard.run.local.step_clock import StepClock  # noqa: E402
from trainyard.run.probe import kept_rate  # noqa: E402
from trainyard.train.process_group import Ranks  # noqa: E402

pytestmark = pytest.mark.torch
ALONE = Ranks(0, 0, 1, 1, "cpu", torch.device("cpu"))


def count_measurements(monkeypatch):
    numbers = count(1)
    monkeypatch.setattr(
        kept_rate, "matmul_rate", lambda *_, **__: Claim(value=float(next(numbers)), unit="FLOP/s", source="fake")
    )


def rate(folder, ranks=ALONE, device="Fast 9", dtype=torch.float32):
    return kept_rate.matmul_rate_of_run(folder, ranks, device, dtype, StepClock()).value


def test_restarted_attempts_take_the_first_rate(tmp_path, monkeypatch):
    count_measurements(monkeypatch)
    assert [rate(tmp_path), rate(tmp_path)] == [1, 1]
    assert rate(tmp_path / "other run") == 2


@pytest.mark.parametrize(
    "change",
    [
        {"device": "Slow 1"},
        {"dtype": torch.bfloat16},
        {"ranks": ALONE._replace(local_world=2)},
        {"ranks": ALONE._replace(device=torch.device("cuda", 1))},
    ],
)
def test_other_conditions_are_measured_again(tmp_path, monkeypatch, change):
    count_measurements(monkeypatch)
    assert [rate(tmp_path), rate(tmp_path, **change), rate(tmp_path, **change)] == [1, 2, 2]


def test_another_host_is_measured_again(tmp_path, monkeypatch):
    count_measurements(monkeypatch)
    rate(tmp_path)
    monkeypatch.setattr(kept_rate, "socket", SimpleNamespace(gethostname=lambda: "elsewhere"))
    assert rate(tmp_path) == 2


@pytest.mark.parametrize("content", [b"", b'{"rate": 1}', b"\xff"])
def test_unreadable_rates_are_measured_again(tmp_path, monkeypatch, content):
    count_measurements(monkeypatch)
    rate(tmp_path)
    (tmp_path / "facts" / "rank0.matmul.json").write_bytes(content)
    assert [rate(tmp_path), rate(tmp_path)] == [2, 2]


def measured_twice(ranks, folder):
    """The rates of three attempts; before the third, rank 1 loses its own."""
    from pathlib import Path

    with pytest.MonkeyPatch.context() as patch:
        count_measurements(patch)
        rates = [rate(Path(folder), ranks) for _ in range(2)]
        if ranks.rank == 1:
            (Path(folder) / "facts" / "rank1.matmul.json").unlink()
        return [*rates, rate(Path(folder), ranks)]


@pytest.mark.slow
def test_all_ranks_measure_if_one_has_to(tmp_path):
    assert on_ranks(2, measured_twice, str(tmp_path)) == [[1, 1, 2], [1, 1, 2]]
