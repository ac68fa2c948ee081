"""The captured operations of a program compute what the program computed, whatever memory its tensors share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.numerics.reproduce.recording_nothing import recorder  # noqa: E402
from trainyard.numerics.reproduce.capture_operations import CaptureOperations  # noqa: E402
from trainyard.numerics.reproduce.captured_slice import CapturedSlice  # noqa: E402
from trainyard.numerics.reproduce.operation_source import function_lines, needed_inputs  # noqa: E402


def computed(capture: CaptureOperations) -> Any:
    """The result of the captured operations as a function, called with their inputs."""
    sliced = CapturedSlice(
        inputs=tuple(described for described, _ in capture.inputs),
        operations=tuple(capture.operations),
        result=capture.result,
        versions={},
        device="cpu",
    )
    needed = needed_inputs(sliced)
    values = {
        each.name: torch.empty_strided(each.shape, each.stride, dtype=value.dtype).copy_(value)
        for each, value in capture.inputs
        if each.name in needed
    }
    text = "\n".join(function_lines("operations", sliced, {name: name for name in values}, list(values)))
    scope: dict[str, Any] = {"torch": torch}
    exec(text, scope)  # noqa: S102  the function that the test wrote
    return scope["operations"](*values.values())


def change(tensors: list[Any], kind: str, at: int, other: int, number: float) -> None:
    """A step of a program: a new tensor, a view of a known one, or a change of one in place."""
    x, y = tensors[at % len(tensors)], tensors[other % len(tensors)]
    match kind:
        case "add":
            tensors.append(x + y.reshape(x.shape))
        case "transpose":
            tensors.append(x.t())
        case "rows":
            tensors.append(x[: x.shape[0] // 2 or 1].repeat(2, 1)[: x.shape[0]])
        case "flatten":
            tensors.append(x.reshape(-1).reshape(x.shape[::-1]))
        case "scale":
            x.mul_(number)
        case "add to a part":
            x[0].add_(y.reshape(-1)[0].clone())
        case "copy":
            x.copy_(y.reshape(x.shape).clone())
        case "foreach":
            torch._foreach_mul_([x, torch.ones(3), y.clone()], [number, 2.0, 3.0])
        case _:
            torch._foreach_add_([torch.ones(2), x], [torch.ones(2), y.reshape(x.shape).clone()])


KINDS = ["add", "transpose", "rows", "flatten", "scale", "add to a part", "copy", "foreach", "foreach sum"]
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.5, -1.25]))


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEPS, max_size=12), result=st.integers(0, 20))
def test_the_captured_operations_compute_the_same_bits(steps: Sequence[Any], result: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(4, 4, generator=generator) for _ in range(3)]
    capture = CaptureOperations(recorder(), ())
    capture.note_inputs(tensors[:2])  # the third becomes an input when it is used
    with torch.no_grad(), capture:
        for step in steps:
            change(tensors, *step)
        chosen = tensors[result % len(tensors)]
    capture.note_result(chosen)
    assert torch.equal(computed(capture), chosen)


def test_parts_of_a_buffer_are_one_input() -> None:
    """As the buckets of DistributedDataParallel: gradients are copied into views, and the whole is scaled."""
    buffer = torch.zeros(8)
    parts = [buffer[:3], buffer[3:8]]
    gradient = torch.arange(3.0)
    capture = CaptureOperations(recorder(), ())
    capture.note_inputs([gradient])
    with torch.no_grad(), capture:
        parts[0].copy_(gradient)
        buffer.mul_(0.5)
        gradient.copy_(parts[0])
    capture.note_result(gradient)
    assert torch.equal(computed(capture), torch.arange(3.0) / 2)


def test_a_bit_that_is_flipped_in_place_stays_a_change_of_the_weight() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    before = weight.detach().clone()
    seen = recorder()
    seen.paths.parameters = lambda: [weight]
    seen.paths.parameter = lambda parameter: ("Model", "weight")
    bits = weight.detach().view(torch.int32).view(-1)
    capture = CaptureOperations(seen, ())
    capture._recorder.next_key = lambda func, args: "wanted" if "xor" in str(func) else None
    capture._wanted = frozenset(["wanted"])
    with torch.no_grad(), capture:
        bits[5].bitwise_xor_(1 << 22)
        doubled = weight * 2
    capture.note_result(doubled)
    assert len(capture.inputs) == 1
    assert capture.inputs[0][0].parameter == "Model.weight"
    assert torch.equal(capture.inputs[0][1], before)
    assert torch.equal(computed(capture), doubled)
    assert not torch.equal(doubled, before * 2)


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_the_update_of_a_parameter_is_captured_alone(options: dict[str, bool]) -> None:
    parameters = [torch.nn.Parameter(torch.randn(5, 3) + number) for number in range(4)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
    for step in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn(5, 3)
        capture = CaptureOperations(recorder(), ())
        chosen = parameters[2]
        state = list(optimizer.state[chosen].values()) if step else []
        capture.note_inputs([chosen, chosen.grad, *state])
        capture.is_update = True
        with capture:
            optimizer.step()
        capture.note_result(chosen)
    shapes = [described.shape for described, _ in capture.inputs]
    assert sum(len(shape) == 2 for shape in shapes) == 4  # weight, gradient, two states: of one parameter
    with torch.no_grad():
        assert torch.equal(computed(capture), chosen)


def test_inputs_above_the_limit_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trainyard.numerics.reproduce.capture_operations.MOST_INPUT_BYTES", 100)
    capture = CaptureOperations(recorder(), ())
    tensors = [torch.zeros(20), torch.zeros(20)]
    with torch.no_grad(), capture:
        capture.note_inputs(tensors)
        total = tensors[0] + tensors[1]
    capture.note_result(total)
    assert len(capture.inputs) == 1
    assert {"opaque": "Tensor"} in capture.operations[-1].arguments
