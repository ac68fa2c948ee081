"""The chunked cross-entropy against torch's, on one rank and with the classes divided over ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import on_ranks

DTYPES = ("float32", "bfloat16", "float16")


def inputs(seed, rows, classes, dtype):
    """Logits with a wide range, and targets."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    logits = 10 * torch.randn(rows, classes, generator=generator)
    return logits.to(getattr(torch, dtype)), torch.randint(classes, (rows,), generator=generator)


def expected(logits, targets, scale):
    """Torch's loss and gradient in float64, rounded to the dtype of the logits."""
    torch = pytest.importorskip("torch")
    exact = logits.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(exact, targets)
    (loss * scale).backward()
    return loss, exact.grad.to(logits.dtype)


@pytest.mark.torch
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 30), st.sampled_from(DTYPES), st.integers(1, 100))
def test_loss_and_gradient_match_torch(seed, rows, classes, dtype, chunk):
    torch = pytest.importorskip("torch")
    from trainyard.train.model import cross_entropy

    logits, targets = inputs(seed, rows, classes, dtype)
    loss, gradient = expected(logits, targets, scale=3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "CHUNK_VALUES", chunk)
        ours = logits.clone().requires_grad_()
        got = cross_entropy.cross_entropy(ours * 1, targets)
        (got * 3.0).backward()
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
    ulps = {"float32": 1e-5, "bfloat16": 8e-3, "float16": 1e-3}[dtype]
    assert torch.allclose(ours.grad, gradient, rtol=ulps, atol=1e-6)


@pytest.mark.torch
def test_second_backward_pass_is_an_error():
    pytest.importorskip("torch")
    from trainyard.train.model.cross_entropy import cross_entropy

    logits, targets = inputs(0, 3, 5, "float32")
    loss = cross_entropy(logits.requires_grad_() * 1, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


@pytest.mark.torch
def test_float32_logits_exist_for_one_chunk_only(monkeypatch):
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from trainyard.train.model import cross_entropy

    class Largest(TorchDispatchMode):
        values = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32:
                    self.values = max(self.values, leaf.numel())
            return out

    monkeypatch.setattr(cross_entropy, "CHUNK_VALUES", 4 * 64)
    logits, targets = inputs(0, 100, 64, "bfloat16")
    with Largest() as largest:
        cross_entropy.cross_entropy(logits.requires_grad_() * 1, targets).backward()
    assert largest.values == 4 * 64


def _divided(ranks, dtype):
    """Loss and gradient of this rank's half of the classes."""
    import torch.distributed as dist

    from trainyard.train.model.cross_entropy import cross_entropy

    logits, targets = inputs(1, 7, 12, dtype)
    own = logits.chunk(2, dim=1)[ranks.rank].clone().requires_grad_()
    loss = cross_entropy(own * 1, targets, dist.group.WORLD, first_class=6 * ranks.rank)
    (loss * 3.0).backward()
    return float(loss), own.grad.float().tolist()


@pytest.mark.torch
@pytest.mark.slow
def test_classes_divided_over_ranks_match_undivided():
    torch = pytest.importorskip("torch")
    loss, gradient = expected(*inputs(1, 7, 12, "float32"), scale=3.0)
    results = on_ranks(2, _divided, "float32")
    assert [value for value, _ in results] == pytest.approx([float(loss)] * 2, rel=1e-6)
    assert torch.allclose(torch.cat([torch.tensor(part) for _, part in results], dim=1), gradient, atol=1e-6)
