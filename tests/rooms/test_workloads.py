"""What a transformer step is expected to do, against what torch counts it doing."""

import subprocess
import sys
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import plugins
from trainyard.errors import BadJob
from trainyard.job import Job, Layout, Model, Recipe
from trainyard.workloads.transformer_ops import model_flops, operations, parameters

MODEL = Model(layers=2, width=32, ffn=48, heads=4, kv_heads=2, head_dim=8)


def a_job(model=MODEL, layout=None, **recipe):
    """2 sequences of 16 bytes a micro-batch, 8 a step."""
    recipe = {"seq_len": 16, "tokens_per_step": 128, "microbatch": 2, **recipe}
    return Job(model=model, layout=layout or Layout(), recipe=Recipe(**recipe))


def flops(job, *ops):
    total = Counter()
    for operation in operations(job):
        if operation.op in ops:
            total[operation.phase] += operation.flops
    return total


def test_the_door_finds_it_and_needs_no_torch():
    code = (
        "import sys; from trainyard import plugins; from trainyard.job import *; "
        "job = Job(model=Model(layers=1, width=8, ffn=8, heads=1, kv_heads=1, head_dim=8), "
        "recipe=Recipe(seq_len=4, tokens_per_step=4)); "
        "assert plugins.load('workloads', 'transformer').expect(job); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_params_are_parts_of_a_job():
    job = msgspec.to_builtins(a_job())
    for path in plugins.load("workloads", "transformer").params:
        part = job
        for name in path.split("."):
            part = part[name]


def test_worked_by_hand():
    # One layer, one head of 2, width 2, ffn 3, vocabulary 256, one sequence of 4.
    model = Model(layers=1, width=2, ffn=3, heads=1, kv_heads=1, head_dim=2)
    job = a_job(model, seq_len=4, tokens_per_step=4, microbatch=1)
    weights = 4 * (2 * 2) + 3 * (2 * 3) + 2 * 256
    pairs = 1 + 2 + 3 + 4
    assert flops(job, "matmul") == {"forward": 2 * 4 * weights, "backward": 4 * 4 * weights}
    assert flops(job, "attention") == {"forward": 2 * 2 * pairs * 2, "backward": 5 * 2 * pairs * 2}
    assert parameters(model) == weights + 2 * 256 + 3 * 2
    assert model_flops(job) == 3 * (2 * 4 * weights + 2 * 2 * pairs * 2)


@given(
    replicate=st.sampled_from([1, 2, 4]),
    shard=st.sampled_from([1, 2]),
    microbatch=st.sampled_from([1, 2]),
    remat=st.sampled_from(["none", "full"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_split_does_the_same_arithmetic(replicate, shard, microbatch, remat, dtype):
    """Ranks share the products and attention equally; how a rank cuts its share into micro-batches is free."""
    layout = Layout(dp_replicate=replicate, dp_shard=shard)
    split = a_job(layout=layout, microbatch=microbatch, tokens_per_step=256, remat=remat, dtype=dtype)
    alone = a_job(microbatch=16, tokens_per_step=256, remat=remat, dtype=dtype)
    for ops in (("matmul",), ("attention",), ("norm",), ("softmax",)):
        assert {phase: n * layout.ranks for phase, n in flops(split, *ops).items()} == flops(alone, *ops)
    assert model_flops(split) == model_flops(alone)
    assert all(operation.bytes > 0 for operation in operations(split) if operation.count)


def test_model_flops_leave_recomputation_out():
    assert (
        model_flops(a_job(remat="full"))
        == model_flops(a_job())
        == 3 * sum(flops(a_job(), op)["forward"] for op in ("matmul", "attention"))
    )
    assert not flops(a_job(), "matmul", "attention", "norm", "elementwise")["recompute"]


def test_accumulation_moves_more_bytes_and_sharding_updates_fewer_weights():
    def moved(job, op, phase):
        return sum(o.bytes for o in operations(job) if (o.op, o.phase) == (op, phase))

    assert moved(a_job(microbatch=2), "matmul", "forward") > moved(a_job(microbatch=8), "matmul", "forward")
    sharded, replicated = a_job(layout=Layout(dp_shard=2)), a_job(layout=Layout(dp_replicate=2))
    assert moved(replicated, "optimizer", "optimizer") == 28 * parameters(MODEL)
    assert moved(sharded, "optimizer", "optimizer") == 14 * parameters(MODEL)


def test_what_cannot_be_trained_is_not_expected_either():
    with pytest.raises(BadJob, match="tp = 2"):
        operations(a_job(layout=Layout(tp=2)))
    with pytest.raises(BadJob, match="pp = 2"):
        model_flops(a_job(layout=Layout(pp=2)))


@pytest.mark.torch
@pytest.mark.parametrize("remat", ["none", "full"])
def test_flops_as_torch_counts_them(remat):
    """torch's counter knows the plain attention kernel, which multiplies the masked pairs too and computes no
    scores again: 4 products backward where a fused kernel has 5."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from trainyard.train import blocks, weights
    from trainyard.train.language import Language

    job = a_job(microbatch=8, remat=remat)
    task = Language(job)
    decoder = task.module()
    blocks.prepare(task.blocks(decoder), job.recipe)
    weights.fill(decoder, task.draw)
    assert weights.count([decoder], None) == parameters(MODEL)
    tokens = torch.randint(256, (8, 16))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.loss(decoder(tokens), (tokens,)).backward()
    counted = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    assert counted["aten.mm"] == sum(flops(job, "matmul").values())
    expected = flops(job, "attention")
    unmasked = 16 * 16 / (16 * 17 / 2)
    products = expected["forward"] + expected["recompute"] + expected["backward"] * 4 / 5
    assert counted["aten.bmm"] == pytest.approx(products * unmasked, rel=1e-12)
