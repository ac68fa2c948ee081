"""Wrong kernels: which are found, and which are undetectable within the rounding of the format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Warning only once for all operators")]

from torch import Tensor  # noqa: E402

from tests.numerics.kernels.operations import Checks, check_all  # noqa: E402

NATIVE: Any = torch.ops.aten


@contextmanager
def replaced(operation: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """The kernel of an operation on the CPU in all formats but float64, in which the right one computes."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(operation, kernel, "CPU")
        yield


def check(operation: str, kernel: Callable[..., Any], function: Callable[[], object]) -> Checks:
    """The checks of a function with a wrong kernel."""
    with replaced(operation, kernel):
        return check_all(function)


def random(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def silu(factor: float) -> Callable[[Tensor], Tensor]:
    def kernel(x: Tensor) -> Tensor:
        wide = x.double()
        return (wide / (1 + (-wide).exp()) * (factor if x.dtype != torch.float64 else 1)).to(x.dtype)

    return kernel


def without_last(a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices that loses the last element of the sums."""
    count = a.shape[-1] - (a.dtype != torch.float64)
    return (a[:, :count].double().unsqueeze(2) * b[:count].double().unsqueeze(0)).sum(1).to(a.dtype)


def sum_in_half(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A sum of the first dimension that is accumulated in the format of its inputs."""
    total = torch.zeros_like(x[0])
    for row in x:
        total = total + row
    return total


def softmax_of_exponentials(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """A softmax that does not subtract the maximum."""
    if x.dtype == torch.float64:
        x = x - x.amax(dim, keepdim=True)
    exponentials = x.exp()
    return exponentials / exponentials.cumsum(dim).narrow(dim, -1, 1)


def norm_of_epsilon(factor: float) -> Callable[..., Any]:
    def kernel(x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        wide = x.double()
        mean = wide.mean(-1, keepdim=True)
        centred = wide - mean
        variance = centred.square().mean(-1, keepdim=True)
        scale = (variance + eps * (factor if x.dtype != torch.float64 else 1)).rsqrt()
        return tuple(each.to(x.dtype) for each in (centred * scale, mean, scale))

    return kernel


def gelu_of_tanh(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Computes the approximation, whatever is requested."""
    wide = x.double()
    inner = wide * (1 + 0.044715 * wide * wide) * (2 / torch.pi) ** 0.5
    exact = 0.5 * wide * (1 + torch.erf(wide * 0.5**0.5))
    return (exact if x.dtype == torch.float64 else 0.5 * wide * (1 + inner.tanh())).to(x.dtype)


def flip(bit: int) -> Callable[[Tensor], Tensor]:
    """tanh with one bit of one element flipped."""

    def kernel(x: Tensor) -> Tensor:
        result = x.double().sinh() / x.double().cosh()
        if x.dtype == torch.float64:
            return result
        rounded = result.to(x.dtype)
        integers = rounded.view(torch.int32 if x.dtype == torch.float32 else torch.int16)
        integers[3, 5] ^= 1 << bit
        return rounded

    return kernel


def truncated(a: Tensor, b: Tensor) -> Tensor:
    """The length of a vector, rounded towards zero to bfloat16 where it must be rounded to nearest."""
    wide = a.double(), b.double()
    length = (wide[0] * wide[0] + wide[1] * wide[1]).sqrt()
    return length if a.dtype == torch.float64 else upper_half(length.float())


def upper_half(x: Tensor) -> Tensor:
    """float32 rounded towards zero to bfloat16: the second of its two little-endian halves."""
    return x.contiguous().view(torch.int16).view(*x.shape, 2)[..., 1].contiguous().view(torch.bfloat16)


def found(checks: Checks, name: str) -> list[int]:
    """Exceeding elements of the calls of an operation."""
    return [each.exceeding for operation, each in checks.checked if operation.startswith(name) and each.exceeding]


def test_silu_wrong_by_a_thousandth_is_found_in_float32() -> None:
    x = random(16, 16)
    assert found(check("silu", silu(1.001), lambda: torch.nn.functional.silu(x)), "aten.silu")
    assert not check("silu", silu(1.0), lambda: torch.nn.functional.silu(x)).exceeding


def test_silu_wrong_by_a_thousandth_is_found_in_bfloat16() -> None:
    """Half a unit in the last place is 4e-3 at most: only elements near the middle between two numbers show it."""
    x = random(64, 64, dtype=torch.bfloat16)
    (exceeding,) = found(check("silu", silu(1.001), lambda: torch.nn.functional.silu(x)), "aten.silu")
    assert exceeding < x.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("terms", [16, 512])
def test_a_product_that_loses_its_last_term_is_found(dtype: Any, terms: int) -> None:
    a, b = random(12, terms, dtype=dtype), random(terms, 9, dtype=dtype, seed=1)
    (exceeding,) = found(check("mm", without_last, lambda: a @ b), "aten.mm")
    assert exceeding > 2


def test_a_sum_accumulated_in_bfloat16_is_found() -> None:
    x = random(64, 40, dtype=torch.bfloat16)
    assert found(check("sum.dim_IntList", sum_in_half, lambda: x.sum(0)), "aten.sum")
    wide = x.float()
    assert not check("sum.dim_IntList", sum_in_half, lambda: wide.sum(0)).exceeding  # another order is right


def test_a_softmax_that_overflows_is_found() -> None:
    x = random(4, 8) * 40
    x[:, 0] = 100
    (exceeding,) = found(check("_softmax", softmax_of_exponentials, lambda: x.softmax(-1)), "aten._softmax")
    assert exceeding
    small = random(4, 8)
    assert not check("_softmax", softmax_of_exponentials, lambda: small.softmax(-1)).exceeding


@pytest.mark.parametrize(("spread", "is_found"), [(1e-3, True), (1e-2, True), (10.0, False)])
def test_another_epsilon_of_a_norm_is_found_if_the_variance_is_small(spread: float, is_found: bool) -> None:
    x = random(8, 32) * spread
    checks = check("native_layer_norm", norm_of_epsilon(0.1), lambda: torch.nn.functional.layer_norm(x, (32,)))
    assert bool(checks.exceeding) == is_found
    right = check("native_layer_norm", norm_of_epsilon(1.0), lambda: torch.nn.functional.layer_norm(x, (32,)))
    assert not right.exceeding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_approximation_of_gelu_is_found(dtype: Any) -> None:
    x = random(64, 64, dtype=dtype)
    assert found(check("gelu", gelu_of_tanh, lambda: torch.nn.functional.gelu(x)), "aten.gelu")


@pytest.mark.parametrize(
    ("dtype", "bit", "is_found"),
    [
        *((torch.float32, 22, True), (torch.float32, 12, True), (torch.float32, 4, True), (torch.float32, 0, False)),
        *((torch.bfloat16, 6, True), (torch.bfloat16, 0, True), (torch.float16, 0, True)),
    ],
)
def test_a_flipped_bit_of_one_element_is_found(dtype: Any, bit: int, is_found: bool) -> None:
    """The last bits of float32 are undetectable: the kernel may round as it likes by a few units."""
    x = random(16, 16, dtype=dtype)
    checks = check("tanh", flip(bit), x.tanh)
    assert found(checks, "aten.tanh") == ([1] if is_found else [])
    if is_found:
        ((_, worst),) = checks.exceeding
        assert worst.worst is not None
        assert worst.worst.index == (3, 5)


def test_truncation_to_bfloat16_is_found() -> None:
    a, b = random(20, 20, dtype=torch.bfloat16), random(20, 20, dtype=torch.bfloat16, seed=1)
    (exceeding,) = found(check("hypot", truncated, lambda: a.hypot(b)), "aten.hypot")
    assert 0.2 < exceeding / a.numel() < 0.8


def test_a_cast_that_truncates_is_found() -> None:
    x = random(20, 20)

    def cast(x: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
        is_wrong = (x.dtype, dtype) == (torch.float32, torch.bfloat16)
        return upper_half(x) if is_wrong else torch.empty(x.shape, dtype=dtype).copy_(x)

    (exceeding,) = found(check("_to_copy", cast, x.bfloat16), "aten._to_copy")
    assert 0.2 < exceeding / x.numel() < 0.8
