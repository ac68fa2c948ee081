"""Operations in float64 and modules that are not compiled, inside a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

from trainyard.numerics.bisect.compiled_modules import CompiledModules  # noqa: E402
from trainyard.numerics.bisect.float64_operations import Float64Operations  # noqa: E402
from trainyard.numerics.bisect.swap import Swap  # noqa: E402
from trainyard.numerics.bisect.swapped_modules import swapped_modules  # noqa: E402
from trainyard.numerics.record.float64_mode import Float64  # noqa: E402
from trainyard.numerics.record.module_paths import ModulePaths  # noqa: E402

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": torch.mm,
    "sum": lambda x, y: x.sum(dim=0),
    "in place": lambda x, y: x.addcmul_(y, x, value=0.3),
    "format": lambda x, y: (x.bfloat16() @ y.bfloat16()).float(),
    "several results": lambda x, y: torch.var_mean(x, dim=0),
    "list": lambda x, y: torch._foreach_mul([x, y], 3.3),
    "list in place": lambda x, y: torch._foreach_addcmul_([x, y], [y, x], [y, y], 0.1),
    "view": lambda x, y: x.t()[1:],
    "integers": lambda x, y: x.argmax(dim=1),
    "alias": lambda x, y: x.contiguous(),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_results_are_those_in_float64_rounded(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(2, 8, 8).to(dtype)
    if name == "format":
        x, y = x.bfloat16().to(dtype), y.bfloat16().to(dtype)
    wide_x, wide_y, given_x, given_y = x.double().clone(), y.double().clone(), x.clone(), y.clone()
    operation = OPERATIONS[name]
    plain = operation(x.clone(), y.clone())
    with Float64Operations(lambda _: True, set()):
        result = operation(given_x, given_y)
    expected = operation(wide_x, wide_y) if name != "format" else (wide_x @ wide_y).bfloat16()
    if name.endswith("in place"):
        result, expected, plain = [given_x, given_y], [wide_x, wide_y], [given_x, given_y]
    values = (list(each) if isinstance(each, (list, tuple)) else [each] for each in (result, expected, plain))
    for computed, exact, like in zip(*values):
        assert (computed.dtype, computed.shape, computed.stride()) == (like.dtype, like.shape, like.stride())
        assert torch.equal(computed, exact.to(computed.dtype))


def test_gradients_are_those_of_the_program() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 1))
    x = torch.randn(5, 6)
    network(x).sum().backward()
    plain = [parameter.grad for parameter in network.parameters()]
    network.zero_grad()
    with Float64Operations(lambda _: True, set()):
        network(x).sum().backward()
    for parameter, gradient in zip(network.parameters(), plain):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        torch.testing.assert_close(parameter.grad, gradient)


@contextmanager
def silu_without_float64(error: type[Exception]) -> Iterator[None]:
    """A kernel of SiLU that computes exp in float32, and raises an error in float64."""

    def silu(x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise error("no kernel")
        return x.exp()

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("silu", silu, "CPU")
        yield


@pytest.mark.parametrize("error", [NotImplementedError, RuntimeError])
def test_operations_without_a_float64_kernel_are_named(error: type[Exception]) -> None:
    x, narrow, all_operations = torch.ones(3), set[str](), Float64()
    contexts = [(Float64Operations(lambda _: True, narrow), narrow), (all_operations, all_operations.narrow)]
    with silu_without_float64(error):
        for context, named in contexts:
            with context:
                result = torch.nn.functional.silu(x)
            torch.testing.assert_close(result.float(), x.exp())
            assert named == {"aten.silu.default"}


def test_memory_that_runs_out_in_float64_ends_the_program() -> None:
    with silu_without_float64(torch.OutOfMemoryError):
        for context in (Float64Operations(lambda _: True, set()), Float64()):
            with context, pytest.raises(torch.OutOfMemoryError):
                torch.nn.functional.silu(torch.ones(3))


def test_random_numbers_are_those_of_the_program() -> None:
    torch.manual_seed(0)

    def draw() -> list[Tensor]:
        rates = torch.full((8,), 5.0)
        numbers = [torch.randn(4), torch.nn.functional.dropout(torch.ones(64)), torch.empty(3).uniform_()]
        return [*numbers, torch.poisson(rates), torch._standard_gamma(rates), torch.randn(4)]

    plain = draw()
    torch.manual_seed(0)
    with Float64Operations(lambda _: True, set()):
        swapped = draw()
    assert all(torch.equal(a, b) for a, b in zip(plain, swapped))


def test_operations_of_kept_modules_are_left_as_they_are() -> None:
    """Forward and backward, by module and by operation."""
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    everything = {"", "Sequential.0", "Sequential.1", "Sequential.2"}
    swapped: list[str] = []
    for swap, expected in (
        (Swap(kind="float64", modules=("Sequential.1", "")), {"Sequential.0", "Sequential.2"}),
        (Swap(kind="float64", modules=("Sequential",)), {""}),
        (Swap(kind="float64", operations=(("Sequential.1", "aten.tanh"),)), everything),
    ):
        swapped.clear()
        with ModulePaths(lambda *_: None, lambda *_: None) as paths:
            context = swapped_modules(swap, paths, set())
            original = context._is_swapped

            def is_swapped(operation: str, original: Any = original, paths: Any = paths) -> bool:
                if original(operation):
                    swapped.append(f"{paths.current}: {operation}")
                return original(operation)

            context._is_swapped = is_swapped
            with context:
                network(torch.randn(3, 4)).sum().backward()
        assert {line.partition(":")[0] for line in swapped} == expected
        if swap.operations:
            assert "Sequential.1: aten.tanh" not in swapped
            assert "Sequential.1: aten.tanh_backward" in swapped


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.cos()


@pytest.mark.parametrize("way", ["whole", "in place", "blocks"])
@pytest.mark.parametrize(
    ("kept", "compiled"),
    [
        ((), []),
        (("",), []),
        (("Network.blocks.1",), ["tanh"]),
        (("Network.blocks",), ["tanh", "tanh"]),
        (("Network.blocks.0.inner",), ["linear"]),
        (("Network", ""), ["tanh tanh cos"]),
    ],
)
def test_only_kept_modules_are_compiled(way: str, kept: tuple[str, ...], compiled: list[str]) -> None:
    graphs: list[str] = []

    def backend(graph: Any, _: object) -> Any:
        calls = [str(node.target) for node in graph.graph.nodes]
        graphs.append(" ".join(name for call in calls for name in ("tanh", "cos") if name in call) or "linear")
        return graph.forward

    torch._dynamo.reset()
    network = Network()
    x = torch.randn(2, 4)
    expected = network(x)
    paths = ModulePaths(lambda *_: None, lambda *_: None)
    with CompiledModules(Swap(kind="eager", modules=kept), paths), paths:
        model: Any = network
        if way == "whole":
            model = torch.compile(network, backend=backend)
        elif way == "in place":
            network.compile(backend=backend)
        else:
            for at, block in enumerate(network.blocks):
                network.blocks[at] = torch.compile(block, backend=backend)
        torch.testing.assert_close(model(x), expected)
    if way == "blocks" and "Network" in kept:
        compiled = ["tanh", "tanh"]
    assert graphs == compiled
    torch._dynamo.reset()


def test_compiled_functions_are_code_outside_of_modules() -> None:
    graphs: list[object] = []

    def backend(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    for kept, count in (((), 0), (("",), 1)):
        torch._dynamo.reset()
        graphs.clear()
        with (
            ModulePaths(lambda *_: None, lambda *_: None) as paths,
            CompiledModules(Swap(kind="eager", modules=kept), paths),
        ):

            @torch.compile(backend=backend)
            def double(x: Tensor) -> Tensor:
                return x.sin() * 2

            torch.testing.assert_close(double(torch.ones(2)), torch.ones(2).sin() * 2)
        assert len(graphs) == count
    torch._dynamo.reset()
