"""Parts of a training that differ, each computed from the values of the other run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from trainyard.errors import BadFile, BadInput, NotEnoughEvidence

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trainyard import api  # noqa: E402
from trainyard.numerics.bisect.bisection_result import NumericsBisection  # noqa: E402
from trainyard.numerics.record.record_command import record_command  # noqa: E402
from trainyard.numerics.record_state import RecordOptions  # noqa: E402

SCRIPT = str(Path(__file__).with_name("independent_faults.py"))
COMMAND = [sys.executable, "-W", "ignore", SCRIPT]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
UPDATE = "update of the weights by the optimizer"


def _bisect(record: Path, folder: Path, *options: str, command: list[str] = COMMAND) -> NumericsBisection:
    return api.bisect_numerics(record, [*command, *options], folder, swap="outputs", rerun=True)


def _causes(result: NumericsBisection) -> list[str]:
    return [cause.name for cause in result.causes]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record without a reference, which is enough."""
    folder = tmp_path_factory.mktemp("record") / "a"
    record_command(COMMAND, folder, RecordOptions(steps=(0, 1), replicas=0))
    return folder


@pytest.fixture(scope="module")
def bisection(record: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bisection of equal trainings, with the values of A."""
    folder = tmp_path_factory.mktemp("bisection")
    with pytest.raises(NotEnoughEvidence):
        _bisect(record, folder)
    return folder


@pytest.fixture
def folder(bisection: Path, tmp_path: Path) -> Path:
    """The values of A and its record from these, for another B."""
    shutil.copytree(bisection, tmp_path / "bisection", ignore=shutil.ignore_patterns("b"))
    return tmp_path / "bisection"


def test_each_of_several_faults_is_named(record: Path, folder: Path) -> None:
    """Faults of the forward pass, of the backward pass and of the optimizer do not hide each other."""
    faults = ["--fault=eps1", "--fault=eps3", "--fault=head", "--fault=backward2", "--fault=decay"]
    result = _bisect(record, folder, *faults)
    parts = ["Network.blocks.1.norm", "Network.blocks.3.norm", "Network", "Network.blocks.2.mixer", UPDATE]
    assert _causes(result) == parts
    assert (result.exit_code, result.swap) == (1, "outputs")
    divergences = [trial.first for trial in result.trials]
    assert result.first == divergences[0]
    for divergence in divergences:
        assert divergence is not None
        assert divergence.kind == "value"
        assert divergence.error is not None
        assert divergence.limit is not None
        assert divergence.error > 50 * divergence.limit
    again = _bisect(record, folder, *faults)
    assert again == result  # from the records in the folder


def test_other_formats_do_not_hide_a_fault(record: Path, folder: Path) -> None:
    """Steps of 1e-3 in weights, and layer norms in float32, between modules in bfloat16."""
    result = _bisect(record, folder, "--autocast", "--fault=eps2", "--fault=decay")
    assert _causes(result) == ["Network.blocks.2.norm", UPDATE]


@pytest.mark.nightly
def test_other_formats_are_no_fault(record: Path, folder: Path) -> None:
    with pytest.raises(NotEnoughEvidence):
        _bisect(record, folder, "--autocast")


@pytest.mark.nightly
def test_initial_weights_and_batches_are_parts(record: Path, folder: Path) -> None:
    result = _bisect(record, folder, "--fault=weights")
    assert _causes(result) == ["initial weights"]
    assert result.exit_code == 0
    shutil.rmtree(folder / "b")
    assert _causes(_bisect(record, folder, "--fault=batch"))[0] == "batches"


@pytest.mark.nightly
def test_the_ranks_of_a_training_start_from_their_own_values(tmp_path: Path) -> None:
    record_command(RANKS, tmp_path / "a", RecordOptions(steps=(0,), replicas=0))
    result = _bisect(tmp_path / "a", tmp_path / "out", "--fault=eps1", "--fault=backward2", command=RANKS)
    assert _causes(result) == ["Network.blocks.1.norm", "Network.blocks.2.mixer"]
    assert {path.name for path in (tmp_path / "out" / "values").glob("rank*.bin")} == {"rank0.bin", "rank1.bin"}


def test_values_of_another_record_are_refused(record: Path, folder: Path, tmp_path: Path) -> None:
    record_command(COMMAND, tmp_path / "one-step", RecordOptions(steps=(0,), replicas=0))
    with pytest.raises(BadInput):
        _bisect(tmp_path / "one-step", folder)
    (folder / "values" / "origin.json").write_text("{")
    with pytest.raises(BadFile):
        _bisect(record, folder)


def test_a_record_is_not_repeated_without_permission(record: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        api.bisect_numerics(record, COMMAND, tmp_path, swap="outputs")


def test_another_model_is_refused(record: Path, folder: Path) -> None:
    script = Path(__file__).with_name("swapped_training.py")
    with pytest.raises(NotEnoughEvidence):
        _bisect(record, folder, command=[sys.executable, "-W", "ignore", str(script)])


def test_values_that_are_too_large_are_refused(record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.numerics.bisect import bisect_outputs
    from trainyard.numerics.bisect.value_index import ValueIndex

    monkeypatch.setattr(bisect_outputs, "read_index", lambda *_: ValueIndex(tensors=(), failure="too large"))
    monkeypatch.setattr(bisect_outputs, "repeat_command", lambda *_: None)
    with pytest.raises(NotEnoughEvidence):
        _bisect(record, tmp_path)
    assert not (tmp_path / "values").exists()
