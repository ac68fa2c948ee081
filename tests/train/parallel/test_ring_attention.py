"""Ring attention on several ranks against full attention, and the order of its transfers."""

import pytest

from tests.ranks import on_ranks

RANKS, LENGTH, HEADS, KV_HEADS, CHANNELS = 4, 32, 4, 2, 8


def tensors(dtype):
    """Queries, keys, values and the output's gradient over the whole sequence (1, heads, T, C)."""
    import torch

    generator = torch.Generator().manual_seed(5)
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return [torch.randn(1, count, LENGTH, CHANNELS, generator=generator).to(dtype) for count in heads]


def positions(rank):
    """The rank's early and late chunk."""
    import torch

    chunks = torch.arange(LENGTH).chunk(2 * RANKS)
    return torch.cat((chunks[rank], chunks[-1 - rank]))


def _ring_gradients(ranks, name):
    """Output and gradients of one rank, and what its backward pass did in order."""
    import torch
    import torch.distributed as dist

    from trainyard.train.parallel import ring_attention

    q, k, v, d_out = (x[:, :, positions(ranks.rank)] for x in tensors(getattr(torch, name)))
    done = []
    send, attend_backward = ring_attention._send_to_next, ring_attention.attend_backward

    def recorded_send(x, group):
        number = sum(kind == "send" for kind, *_ in done)
        done.append(("send", number, str(x.dtype)))
        wait = send(x, group)

        def recorded_wait():
            done.append(("wait", number, ""))
            return wait()

        return recorded_wait

    def recorded_attention(*given):
        done.append(("compute", 0, ""))
        return attend_backward(*given)

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = ring_attention.ring(*leaves, dist.group.WORLD)
    ring_attention._send_to_next, ring_attention.attend_backward = recorded_send, recorded_attention
    out.backward(d_out)
    return out.detach().float().tolist(), [x.grad.float().tolist() for x in leaves], done


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("name", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_ring_matches_full_attention(name, tolerance):
    torch = pytest.importorskip("torch")
    q, k, v, d_out = (x.double() for x in tensors(getattr(torch, name)))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    full = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    full.backward(d_out)
    for rank, (out, grads, _) in enumerate(on_ranks(RANKS, _ring_gradients, name)):
        here = positions(rank)
        for got, expected in zip([out, *grads], [full.detach(), *(x.grad for x in leaves)]):
            own = expected[:, :, here]
            assert (torch.tensor(got) - own).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.torch
@pytest.mark.slow
def test_gradients_travel_in_the_compute_dtype_under_the_next_part():
    pytest.importorskip("torch")
    for _, _, done in on_ranks(RANKS, _ring_gradients, "bfloat16"):
        assert {dtype for kind, _, dtype in done if kind == "send"} == {"torch.bfloat16"}
        sends = [number for number, (kind, *_) in enumerate(done) if kind == "send"]
        assert len(sends) == 2 * RANKS - 1, "keys and values after all parts but the last, gradients after each"
        for number in range(1, 2 * RANKS - 2, 2):  # of gradients: sent after a part, awaited after the next
            between = done[sends[number] + 1 : done.index(("wait", number, ""))]
            assert ("compute", 0, "") in between, number
