"""Parts of matrices, sequences and logits that are split over ranks. (test_parity.py trains them on ranks.)"""

from itertools import chain
from typing import Any

import pytest

from tests.refused import refused
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import context_parallel_rules, tensor_parallel_rules

MODEL: dict[str, Any] = {
    "layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
}
"""Grouped: two query heads share a key/value head."""
LATENT = {"kv_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
SP = {"tp": 2, "sequence_parallel": True}


def a_job(spread=None, model=None, text="python", **recipe):
    recipe = {"seq_len": 16, "tokens_per_step": 64, "micro_batch_size": 2, "learning_rate": 1e-2, "seed": 7, **recipe}
    return Job(
        model=Model(**MODEL | (model or {})), layout=Layout(**spread or {}), recipe=Recipe(dataset=text, **recipe)
    )


@pytest.mark.torch
@pytest.mark.parametrize("kernel", ["cpu", "plain"])
@pytest.mark.parametrize(("queries", "keys", "causal"), [(9, 9, True), (9, 5, False), (4, 8, False)])
def test_attention_and_log_sum_exp_match_float64(kernel, queries, keys, causal):
    """Also if `out` and `lse` are those of more keys: gradients are then the contribution of these keys."""
    torch = pytest.importorskip("torch")
    from trainyard.train.parallel import fused_attention

    random = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, queries, 8, generator=random)
    k, v = torch.randn(2, 2, 2, 2 * keys, 8, generator=random)
    d_out = torch.randn(q.shape, generator=random)
    wide = [x.double().requires_grad_() for x in (q, k, v)]

    def softmax(count):
        """Attention over the first `count` keys, with a causal mask on those that `fused` sees."""
        k, v = (x[:, :, :count].repeat_interleave(2, dim=1) for x in wide[1:])
        scores = wide[0] @ k.mT * 8**-0.5
        hidden = torch.arange(count) > torch.arange(queries)[:, None]
        scores = scores.masked_fill(hidden & (torch.arange(count) < keys), -torch.inf) if causal else scores
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    seen = (q, k[:, :, :keys], v[:, :, :keys])
    out, lse = fused_attention.attend(*seen, causal, kernel)
    assert torch.allclose(out.double(), softmax(keys)[0], atol=1e-6)
    assert torch.allclose(lse.double(), softmax(keys)[1], atol=1e-6)

    out, lse = softmax(2 * keys)
    grads = torch.autograd.grad(out, wide, d_out.double())
    whole = (out.float().detach(), lse.float().detach())
    of_part = fused_attention.attend_backward(d_out, *seen, *whole, causal, kernel)
    of_rest = fused_attention.attend_backward(d_out, q, k[:, :, keys:], v[:, :, keys:], *whole, False, kernel)
    assert torch.allclose((of_part[0] + of_rest[0]).double(), grads[0], atol=1e-6)
    for part, rest, grad in zip(of_part[1:], of_rest[1:], grads[1:]):
        assert torch.allclose(torch.cat((part, rest), dim=2).double(), grad, atol=1e-6)


# Positions of a rank


@pytest.mark.torch
@pytest.mark.parametrize("method", ["all_gather", "ring", "ulysses"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_positions_are_partitioned_with_equal_causal_work(method, ranks):
    pytest.importorskip("torch")
    from types import SimpleNamespace

    from trainyard.train.parallel.context_parallel import positions

    def rank_positions(rank):
        mesh = SimpleNamespace(get_local_rank=lambda _: rank)
        meshes: Any = SimpleNamespace(layout=Layout(cp=ranks, cp_method=method), sequence=mesh)
        return positions(24, meshes).tolist()

    parts = [rank_positions(rank) for rank in range(ranks)]
    assert sorted(chain(*parts)) == list(range(24))
    assert all(part == sorted(part) for part in parts), "a local causal mask holds"
    if method != "ulysses":
        assert len({sum(part) for part in parts}) == 1


@pytest.mark.torch
@pytest.mark.slow
def test_process_groups_are_named_by_their_axis(tmp_path):
    """Also for an axis over all ranks. Profiles show these names."""
    multiprocessing = pytest.importorskip("torch.multiprocessing")
    multiprocessing.start_processes(_check_names, (f"file://{tmp_path}/meet",), nprocs=2, start_method="forkserver")


def _check_names(rank, meet):
    import torch.distributed as dist

    from trainyard.train.parallel.mesh import Meshes

    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    for layout in (Layout(tp=2), Layout(cp=2), Layout(dp_shard=2)):
        meshes = Meshes(layout, "cpu")
        for view in (meshes.data, meshes.sequence, meshes.experts):
            for axis in view.mesh_dim_names or ():
                assert view.get_group(axis).group_desc == f"mesh_{axis}"
    dist.barrier()
    dist.destroy_process_group()


# Refusals


@pytest.mark.parametrize(
    ("spread", "model", "recipe", "values"),
    [
        ({"sequence_parallel": True}, {}, {}, ["sequence_parallel = true", "$.layout", "tp = 1"]),
        ({"loss_parallel": True}, {}, {}, ["loss_parallel = true", "tp = 1", "loss_parallel = false"]),
        (
            {"tp": 3},
            {},
            {},
            ["tp = 3", "heads 4 % tp 3 = 1", "tp = 2"],
        ),
        ({"tp": 4}, {}, {}, ["kv_heads 2 % tp 4 = 2", "tp = 2"]),
        (
            {"tp": 2},
            {"ffn_hidden_size": 63},
            {},
            ["ffn_hidden_size 63 % tp 2 = 1", "tp = 1"],
        ),
        ({"tp": 2}, {"vocab": 257}, {}, ["vocab 257 % tp 2 = 1"]),
        (
            SP | {"cp": 2},
            {},
            {"seq_len": 18},
            ["sequence_parallel = true", "seq_len 18 % (tp 2 * cp 2) = 2", "seq_len = 16"],
        ),
        ({"tp": 2}, {"position": "learned"}, {"seq_len": 17}, ["seq_len 17 % tp 2 = 1", "learned positions"]),
        ({"tp": 2}, LATENT, {}, ["tp = 2", "kv_lora_rank = 8", "$.model"]),
        (
            {"tp": 2},
            {"experts": 4, "top_k": 1, "moe_ffn_hidden_size": 8},
            {},
            ["experts = 4", "$.model", "tp = 1, and ep = 2"],
        ),
    ],
)
def test_invalid_tensor_split_is_refused_with_the_arithmetic(spread, model, recipe, values):
    with refused(BadJob, "$.layout", *values):
        tensor_parallel_rules.check(_whole_job(spread, model, recipe))


@pytest.mark.parametrize(
    ("spread", "model", "recipe", "values"),
    [
        (
            {"cp": 2},
            {},
            {"seq_len": 18},
            ["cp = 2", "seq_len 18 % 4 chunks = 2", "all_gather", "seq_len = 16"],
        ),
        ({"cp": 4, "cp_method": "ring"}, {}, {"seq_len": 20}, ["cp = 4", "seq_len 20 % 8 chunks = 4", "ring"]),
        (
            {"cp": 4, "cp_method": "ulysses"},
            {},
            {"seq_len": 18},
            ["cp = 4", "seq_len 18 % 4 chunks = 2", "ulysses", "seq_len = 16"],
        ),
        (
            {"cp": 4, "tp": 2, "cp_method": "ulysses"},
            {},
            {},
            ["cp_method = 'ulysses'", "heads 4 % (cp 4 * tp 2) = 4", "'all_gather'"],
        ),
        (
            {"cp": 2, "cp_method": "ring"},
            LATENT | {"v_head_dim": 16},
            {},
            ["cp_method = 'ring'", "16 channels", "head_dim 8 + qk_rope_head_dim 4 = 12"],
        ),
    ],
)
def test_invalid_sequence_split_is_refused_with_the_arithmetic(spread, model, recipe, values):
    with refused(BadJob, "$.layout", *values):
        context_parallel_rules.check(_whole_job(spread, model, recipe))


def _whole_job(spread, model, recipe):
    """A job with one sequence per rank and step, of any length."""
    length = recipe.get("seq_len", 16)
    return a_job(spread, model, seq_len=length, tokens_per_step=length, micro_batch_size=1)
