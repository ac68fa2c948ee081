"""Comparisons of trainings whose weights are initialised differently."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from tests.numerics.record.small_training import Classifier, train  # noqa: E402
from trainyard.numerics.compare.compare_records import compare_records  # noqa: E402
from trainyard.numerics.record.float64_mode import Float64  # noqa: E402
from trainyard.numerics.record.recorder import Recorder  # noqa: E402
from trainyard.numerics.record_files import FORMAT, RecordWriter  # noqa: E402
from trainyard.numerics.record_state import variant_names  # noqa: E402
from trainyard.numerics.tensor_record import RecordHeader  # noqa: E402
from trainyard.numerics.triage.triage_record import triage_record  # noqa: E402
from trainyard.numerics.ulp_jitter import UlpJitter  # noqa: E402
from trainyard.report.numerics.numerics_report import report_numerics  # noqa: E402


def record(folder: Path, run: Callable[[], object], replicas: int = 0) -> Path:
    """Records two steps in this process, with a float64 reference and replicas if there are any."""
    for number, variant in enumerate(variant_names(replicas)):
        header = RecordHeader(format=FORMAT, variant=variant, rank=0, ranks=1, level="operations")
        modes = {"plain": nullcontext, "float64": Float64}
        mode = modes.get(variant, lambda seed=number: UlpJitter(seed, 2, all_operations=True))()
        with RecordWriter(folder, header) as writer:
            recorder = Recorder(lambda records, writer=writer: [writer.write(each) for each in records], range(2))
            with mode, recorder:
                run()
    return folder


def train_from(initialise: Callable[[nn.Module], object], seed: int = 0) -> None:
    """Trains a classifier whose weights are initialised by a function."""
    torch.manual_seed(seed)
    model = Classifier()
    initialise(model)
    train(2, model)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("reference") / "a", lambda: train_from(lambda model: None), 3)


def test_the_same_training_has_equal_initial_weights(reference: Path, tmp_path: Path):
    comparison = compare_records(reference, record(tmp_path / "b", lambda: train_from(lambda model: None)))
    assert (comparison.verdict, comparison.counts.identical) == ("same", comparison.counts.compared)


def test_a_wrong_initial_weight_is_named_with_its_line(reference: Path, tmp_path: Path):
    def initialise(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("layers.1.up.weight").mul_(1.01)

    comparison = compare_records(reference, record(tmp_path / "b", lambda: train_from(initialise)))
    assert comparison.verdict == "different"
    assert comparison.first is not None
    tensor = comparison.first.tensor
    assert (tensor.step, tensor.phase, tensor.role) == (0, "forward", "weight")
    assert (tensor.module, tensor.name) == ("Classifier.layers.1.up", "weight")
    assert "test_initial_weights.py:" in tensor.location_b
    assert comparison.first.error == pytest.approx(0.01, rel=0.3)
    modules = [module.module for module in comparison.modules]
    assert modules.index("Classifier.embedding") < modules.index("Classifier.layers.0.up")
    assert modules.index("Classifier.layers.1.up") < modules.index("Classifier.head")
    assert "before step 0" in report_numerics(comparison, "").headline


def test_an_initialisation_that_is_overwritten_raises_no_alarm(reference: Path, tmp_path: Path):
    def initialise(model: nn.Module) -> None:
        torch.manual_seed(0)
        model.load_state_dict(Classifier().state_dict())

    comparison = compare_records(reference, record(tmp_path / "b", lambda: train_from(initialise, seed=5)))
    assert comparison.verdict == "same"


def test_operations_that_follow_from_unseeded_weights_are_reproducible(reference: Path, tmp_path: Path):
    def initialise(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("head.weight").add_(0.5)

    again = record(tmp_path / "b", lambda: train_from(initialise))
    determinism = triage_record(reference, again).determinism
    assert determinism is not None
    assert determinism.identical < determinism.compared
    assert determinism.operations == ()
