"""Loss and gradient norm of a step on a device: read without waiting for the device until they are needed."""

import pytest

torch = pytest.importorskip("torch")

from tests.simulated_streams import SimulatedStreams  # noqa: E402
from trainyard.train.step import deferred_outcome  # noqa: E402
from trainyard.train.step.deferred_outcome import DeferredOutcome  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("first", ["loss", "grad_norm"])
def test_values_are_copied_when_the_device_has_computed_them(monkeypatch, first):
    device, copied = SimulatedStreams(newest_first=False), []
    copy = deferred_outcome.copy_to_host

    def launch(target, source):
        target.fill_(-1)
        device.launch(lambda: (copied.append(True), copy(target, source)))

    monkeypatch.setattr(deferred_outcome, "copy_to_host", launch)
    outcomes = [
        DeferredOutcome(torch.tensor(6.0 * step), torch.tensor(float("inf")), loss_divisor=4.0, cuda=device)
        for step in (1, 2)
    ]
    assert copied == []
    getattr(outcomes[0], first)
    assert [(outcome.loss, outcome.grad_norm) for outcome in outcomes] == [(1.5, float("inf")), (3.0, float("inf"))]
