"""Operations with random inputs, for tests of the bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trainyard.numerics.kernels.check_operation import OperationCheck
from trainyard.numerics.kernels.checked_operations import CheckedOperations

Draw = Callable[..., Tensor]


class Case(NamedTuple):
    """How inputs are drawn. `kind`: of their values; `size`: a factor of the shapes."""

    dtype: torch.dtype
    scale: float
    kind: str
    size: int
    seed: int
    channels_last: bool = False


class Checks(NamedTuple):
    """The operations of a function, and the reasons for which others were not checked."""

    checked: list[tuple[str, OperationCheck]]
    unchecked: list[tuple[str, str]]

    @property
    def exceeding(self) -> list[tuple[str, OperationCheck]]:
        return [(name, check) for name, check in self.checked if check.exceeding]


def check_all(function: Callable[[], object], most_elements: int = 1 << 22) -> Checks:
    """Checks all operations of a function, also of its backward pass."""
    checks = Checks([], [])
    with CheckedOperations(
        lambda func, reason: reason,
        lambda func, check: checks.checked.append((str(func), check)),
        lambda func, reason: checks.unchecked.append((str(func), reason)),
        most_elements,
    ):
        function()
    return checks


class Inputs:
    """Draws the inputs of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._generator = torch.Generator().manual_seed(case.seed)

    def __call__(self, *shape: int, positive: bool = False, scale: float | None = None) -> Tensor:
        """A leaf tensor of the case's kind, dtype and scale."""
        x = torch.randn(shape, generator=self._generator)
        match self.case.kind:
            case "positive":
                x = x.abs() + 0.1
            case "equal":
                x = torch.full(shape, 0.7)
            case "cancelling":  # pairs of opposite values, and small differences of them
                flat = x.flatten()
                half = len(flat) // 2
                flat[half : 2 * half] = -flat[:half] * (1 + 1e-5 * torch.randn(half, generator=self._generator))
                x = flat[torch.randperm(len(flat), generator=self._generator)].view(shape)
            case "shifted":
                x = x + 100
            case "halves" if shape:  # the sum grows, and then returns to 0
                x = x.abs() * torch.where(torch.arange(shape[-1]) < shape[-1] // 2, 1.0, -1.0)
            case _:
                pass
        x = (x.abs() + 1e-3 if positive else x) * (self.case.scale if scale is None else scale)
        x = x.to(self.case.dtype)
        if self.case.channels_last and x.ndim == 4:
            x = x.to(memory_format=torch.channels_last)
        return x.requires_grad_()

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self._generator)


def _backward(result: Tensor, draw: Inputs) -> None:
    """Backward from a gradient of the case's kind."""
    result.backward(draw(*result.shape).detach().to(result.dtype))


def _differentiable(function: Callable[[Tensor], Tensor], positive: bool = False) -> Callable[[Inputs], None]:
    def run(draw: Inputs) -> None:
        _backward(function(draw(draw.case.size, 37, positive=positive)), draw)

    return run


def _plain(function: Callable[[Tensor, Tensor], Any]) -> Callable[[Inputs], None]:
    def run(draw: Inputs) -> None:
        with torch.no_grad():
            function(draw(draw.case.size, 37), draw(draw.case.size, 37))

    return run


def _matmul(draw: Inputs) -> None:
    n = draw.case.size
    _backward(draw(5, 8 * n) @ draw(8 * n, 7), draw)
    _backward(torch.bmm(draw(3, 4, n), draw(3, n, 5)), draw)
    _backward(torch.addmm(draw(6), draw(4, n), draw(n, 6), beta=0.3, alpha=1.7), draw)
    _backward(F.linear(draw(2, 3, 4 * n), draw(5, 4 * n), draw(5)), draw)
    _backward(torch.baddbmm(draw(3, 4, 5), draw(3, 4, n), draw(3, n, 5), beta=0.1), draw)
    _backward(torch.mv(draw(6, n), draw(n)), draw)
    _backward(torch.dot(draw(n), draw(n)), draw)


def _convolution(draw: Inputs) -> None:
    n = draw.case.size
    _backward(F.conv1d(draw(2, 3, 10 + n), draw(4, 3, 5), draw(4), stride=2, padding=1), draw)
    _backward(F.conv2d(draw(2, n, 9, 8), draw(6, n, 3, 3), draw(6), padding=1), draw)
    _backward(F.conv2d(draw(2, 8, 9, 8), draw(8, 1, 3, 3), groups=8), draw)
    _backward(F.conv_transpose2d(draw(1, n, 5, 5), draw(n, 2, 3, 3), stride=2), draw)


def _norms(draw: Inputs) -> None:
    n = draw.case.size
    x = draw(4, 3, n)
    _backward(F.layer_norm(x, (n,), draw(n), draw(n)), draw)
    _backward(F.group_norm(draw(2, 8, n, 3), 4, draw(8), draw(8)), draw)
    _backward(F.rms_norm(draw(4, n), (n,), draw(n)), draw)
    dtype = torch.float32 if draw.case.dtype != torch.float32 else draw.case.dtype
    mean, variance = torch.zeros(5, dtype=dtype), torch.ones(5, dtype=dtype)
    weight, bias = draw(5).detach().to(dtype).requires_grad_(), draw(5).detach().to(dtype).requires_grad_()
    _backward(F.batch_norm(draw(4, 5, n, 3), mean, variance, weight, bias, training=True), draw)
    _backward(F.batch_norm(draw(4, 5, n, 3), mean, variance, weight, bias, training=False), draw)


def _softmax(draw: Inputs) -> None:
    n = draw.case.size
    _backward(torch.softmax(draw(4, n), -1), draw)
    _backward(torch.log_softmax(draw(4, n), -1), draw)
    _backward(torch.softmax(draw(n, n).masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")), -1), draw)
    _backward(torch.softmax(draw(n, 5), 0), draw)
    _backward(torch.logsumexp(draw(4, n), -1), draw)


def _losses(draw: Inputs) -> None:
    n = draw.case.size
    F.cross_entropy(draw(6, n).float(), draw.integers(n, 6), label_smoothing=0.1).backward()
    F.cross_entropy(draw(6, n), draw.integers(n, 6), ignore_index=0, reduction="sum").backward()
    F.mse_loss(draw(6, n), draw(6, n)).backward()
    F.binary_cross_entropy_with_logits(draw(6, n), draw(6, n).detach().sigmoid()).backward()
    F.smooth_l1_loss(draw(6, n), draw(6, n)).backward()
    F.kl_div(draw(6, n).log_softmax(-1), draw(6, n).detach().softmax(-1), reduction="batchmean").backward()


def _lookups(draw: Inputs) -> None:
    n = draw.case.size
    _backward(F.embedding(draw.integers(11, 4, n), draw(11, 6)), draw)
    _backward(draw(n, 5)[draw.integers(n, 30)], draw)
    _backward(torch.index_add(draw(7, 3), 0, draw.integers(7, n), draw(n, 3)), draw)
    _backward(torch.scatter_add(draw(7, 3), 0, draw.integers(7, n, 3), draw(n, 3)), draw)
    _backward(torch.gather(draw(n, 5), 0, draw.integers(n, 4, 5)), draw)
    with torch.no_grad():
        torch.index_put(draw(7, 3), (draw.integers(7, n),), draw(n, 3), accumulate=True)
        torch.index_put(draw(7, 3), (torch.randperm(7),), draw(7, 3))


def _attention(draw: Inputs) -> None:
    n = draw.case.size
    scale = min(draw.case.scale, 10.0)
    q, k, v = (draw(2, 2, n, 8, scale=scale) for _ in range(3))
    _backward(F.scaled_dot_product_attention(q, k, v, is_causal=True), draw)
    _backward(F.scaled_dot_product_attention(q, k, v, attn_mask=draw(n, n, scale=1.0).detach()), draw)


def _reductions(draw: Inputs) -> None:
    n = draw.case.size
    for function in (
        *(torch.sum, torch.mean, torch.var, torch.std, torch.linalg.vector_norm, torch.amax),
        *(torch.cumsum, lambda x, dim: torch.linalg.vector_norm(x, 3, dim)),
        lambda x, dim: torch.cumprod(x.clamp(-1, 1), dim),
        *(lambda x, dim: torch.sort(x, dim).values, lambda x, dim: torch.topk(x, 2, dim).values),
    ):
        for dim in (0, 1):
            _backward(function(draw(8 * n, 12), dim=dim), draw)  # pyright: ignore[reportArgumentType]
    draw(3 * n, 5).sum().backward()
    draw(3 * n, 5).float().sum().backward()
    F.avg_pool2d(draw(1, 2, 2 * n, 8), 2).sum().backward()
    F.max_pool2d(draw(1, 2, 2 * n, 8), 2).sum().backward()
    F.adaptive_avg_pool2d(draw(1, 2, 2 * n, 8), 1).sum().backward()


def _pairs(draw: Inputs) -> None:
    shape = (draw.case.size, 37)
    for function in (torch.add, torch.sub, torch.mul, torch.hypot, torch.atan2, torch.maximum):
        _backward(function(draw(*shape), draw(*shape)), draw)
    x, y = draw(*shape), draw(*shape)
    _backward(torch.where(x > y, x, y), draw)
    _backward(draw(*shape) / draw(*shape, positive=True), draw)
    _backward(torch.lerp(draw(*shape), draw(*shape), 0.1), draw)
    _backward(torch.addcmul(draw(*shape), draw(*shape), draw(*shape), value=0.3), draw)
    _backward(torch.addcdiv(draw(*shape), draw(*shape), draw(*shape, positive=True), value=0.3), draw)
    _backward(draw(*shape).float() * draw(*shape), draw)
    _backward(draw(*shape) * 0.1 + 0.3, draw)
    _backward(torch.add(draw(*shape), draw(*shape), alpha=0.1), draw)


def _optimizers(draw: Inputs) -> None:
    n = draw.case.size
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
            if kind is torch.optim.SGD and "fused" in options and draw.case.dtype != torch.float32:
                continue  # its momentum is wrong in torch 2.13 on the CPU
            parameters = [draw(n, 5), draw(7)]
            extra: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.01} if kind is torch.optim.SGD else {}
            optimizer = kind(parameters, lr=1e-2, **options, **extra)
            for _ in range(2):
                for parameter in parameters:
                    parameter.grad = draw(*parameter.shape).detach().to(parameter.dtype)
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()


def _casts(draw: Inputs) -> None:
    x = draw(draw.case.size, 37).detach()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        y = x.to(dtype)
        y.to(torch.float32)
        torch.empty(x.shape, dtype=dtype).copy_(x)
    torch.cat([x, x.float()])
    x.clone().masked_fill_(x > 0, 0.1)
    x.clamp(0.1, 0.3)


_ELEMENTWISE: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "gelu": (F.gelu, False),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), False),
    "silu": (F.silu, False),
    "tanh": (torch.tanh, False),
    "sigmoid": (torch.sigmoid, False),
    "relu": (F.relu, False),
    "exp": (lambda x: torch.exp(x.clamp(-50, 50)), False),
    "expm1": (lambda x: torch.expm1(x.clamp(-50, 50)), False),
    "log": (torch.log, True),
    "log1p": (torch.log1p, True),
    "sqrt": (torch.sqrt, True),
    "rsqrt": (torch.rsqrt, True),
    "reciprocal": (torch.reciprocal, True),
    "sin": (torch.sin, False),
    "cos": (torch.cos, False),
    "large sin": (lambda x: torch.sin(x * 1000), False),
    "tan": (torch.tan, False),
    "atan": (torch.atan, False),
    "pow 0.3": (lambda x: x**0.3, True),
    "pow 3": (lambda x: x**3, False),
    "pow 2.5": (lambda x: x**2.5, True),
    "pow of 1.1": (lambda x: 1.1 ** x.clamp(-50, 50), False),
    "softplus": (F.softplus, False),
    "logsigmoid": (F.logsigmoid, False),
    "elu": (F.elu, False),
    "mish": (F.mish, False),
    "hardswish": (F.hardswish, False),
    "hardsigmoid": (F.hardsigmoid, False),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.01), False),
    "erf": (torch.erf, False),
    "erfc": (torch.erfc, False),
    "abs": (torch.abs, False),
    "glu": (lambda x: F.glu(torch.cat([x, x], 1)), False),
    "sinh": (lambda x: torch.sinh(x.clamp(-50, 50)), False),
    "log2": (torch.log2, True),
    "exp2": (lambda x: torch.exp2(x.clamp(-50, 50)), False),
}
CALIBRATION = (
    *("gelu", "tanh", "exp", "log", "rsqrt", "sin", "pow 0.3", "softplus", "erf"),
    *("matrix products", "reductions", "layers of norms", "softmax"),
)
"""The operations on which margin and constant of the bound were chosen; all others judge them."""
OPERATIONS: dict[str, Callable[[Inputs], None]] = {
    **{name: _differentiable(*each) for name, each in _ELEMENTWISE.items()},
    "matrix products": _matmul,
    "convolutions": _convolution,
    "layers of norms": _norms,
    "softmax": _softmax,
    "losses": _losses,
    "lookups": _lookups,
    "attention": _attention,
    "reductions": _reductions,
    "pairs": _pairs,
    "optimizers": _optimizers,
    "casts": _casts,
}
KINDS = ("normal", "positive", "equal", "cancelling", "shifted", "halves")
