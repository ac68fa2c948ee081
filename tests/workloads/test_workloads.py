"""The expected operations of a transformer step, compared with torch's FLOP counter."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import on_ranks
from tests.refused import refused
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.workloads.ops.matmul_ops import widths
from trainyard.workloads.ops.transformer_ops import model_flops, operations, parameters

MODEL = Model(layers=2, hidden_size=32, ffn_hidden_size=48, heads=4, kv_heads=2, head_dim=8)


def a_job(model=MODEL, layout=None, **recipe):
    """A job with 2 sequences of 16 bytes per micro-batch and 8 per step."""
    recipe = {"seq_len": 16, "tokens_per_step": 128, "micro_batch_size": 2, **recipe}
    return Job(model=model, layout=layout or Layout(), recipe=Recipe(**recipe))


def flops(job, *ops):
    total = Counter()
    for operation in operations(job):
        if operation.op in ops:
            total[operation.phase] += operation.flops
    return total


def test_operations_match_a_hand_calculation():
    # One layer, one head of 2, width 2, ffn 3, vocabulary 256, one sequence of 4.
    model = Model(layers=1, hidden_size=2, ffn_hidden_size=3, heads=1, kv_heads=1, head_dim=2)
    job = a_job(model, seq_len=4, tokens_per_step=4, micro_batch_size=1)
    weights = 4 * (2 * 2) + 3 * (2 * 3) + 2 * 256
    pairs = 1 + 2 + 3 + 4
    assert flops(job, "matmul") == {"forward": 2 * 4 * weights, "backward": 4 * 4 * weights}
    assert flops(job, "attention") == {"forward": 2 * 2 * pairs * 2, "backward": 5 * 2 * pairs * 2}
    assert parameters(model) == weights + 2 * 256 + 3 * 2
    assert model_flops(job) == 3 * (2 * 4 * weights + 2 * 2 * pairs * 2)


@given(
    replicate=st.sampled_from([1, 2, 4]),
    shard=st.sampled_from([1, 2]),
    micro_batch_size=st.sampled_from([1, 2]),
    activation_checkpoint=st.sampled_from(["none", "full"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_split_has_the_same_arithmetic(replicate, shard, micro_batch_size, activation_checkpoint, dtype):
    """Ranks share products and attention equally, for any split into micro-batches."""
    layout = Layout(dp_replicate=replicate, dp_shard=shard)
    split = a_job(
        layout=layout,
        micro_batch_size=micro_batch_size,
        tokens_per_step=256,
        activation_checkpoint=activation_checkpoint,
        dtype=dtype,
    )
    alone = a_job(micro_batch_size=16, tokens_per_step=256, activation_checkpoint=activation_checkpoint, dtype=dtype)
    for ops in (("matmul",), ("attention",), ("norm",), ("softmax",)):
        assert {phase: n * layout.ranks for phase, n in flops(split, *ops).items()} == flops(alone, *ops)
    assert model_flops(split) == model_flops(alone)
    assert all(operation.bytes > 0 for operation in operations(split) if operation.count)


def test_model_flops_exclude_recomputation():
    assert (
        model_flops(a_job(activation_checkpoint="full"))
        == model_flops(a_job())
        == 3 * sum(flops(a_job(), op)["forward"] for op in ("matmul", "attention"))
    )
    assert not flops(a_job(), "matmul", "attention", "norm", "elementwise")["recompute"]


def test_accumulation_moves_more_bytes_and_sharding_updates_fewer_weights():
    def moved(job, op, phase):
        return sum(o.bytes for o in operations(job) if (o.op, o.phase) == (op, phase))

    assert moved(a_job(micro_batch_size=2), "matmul", "forward") > moved(a_job(micro_batch_size=8), "matmul", "forward")
    sharded, replicated = a_job(layout=Layout(dp_shard=2)), a_job(layout=Layout(dp_replicate=2))
    assert moved(replicated, "optimizer", "optimizer") == 28 * parameters(MODEL)
    assert moved(sharded, "optimizer", "optimizer") == 14 * parameters(MODEL)


def test_untrainable_job_has_no_expected_operations():
    with refused(BadJob, "tp = 4", "$.layout", "kv_heads 2 % tp 4 = 2"):
        operations(a_job(layout=Layout(tp=4)))
    with refused(BadJob, "pp = 2", "$.layout", "schedule = 'none'"):
        model_flops(a_job(layout=Layout(pp=2)))


def test_rank_operations_are_the_mean_over_ranks():
    """One of two stages has the embedding, the other head and loss. Ranks of tp repeat unsplit work."""
    alone, staged = a_job(), a_job(layout=Layout(pp=2), schedule="gpipe")
    tensor, divided = (a_job(layout=Layout(tp=2, sequence_parallel=sp, loss_parallel=sp)) for sp in (False, True))
    for op in ("matmul", "attention", "norm", "elementwise", "embedding", "softmax"):
        for phase in ("forward", "backward"):
            whole = flops(alone, op)[phase]
            assert flops(staged, op)[phase] == whole // 2
            assert flops(divided, op)[phase] <= flops(tensor, op)[phase] <= whole
    assert flops(tensor, "norm") == flops(alone, "norm"), "each rank norms all positions"
    assert flops(divided, "norm")["forward"] * 2 == flops(alone, "norm")["forward"], "or its own"
    assert flops(tensor, "softmax") == flops(alone, "softmax"), "and has all logits"
    assert flops(divided, "softmax")["forward"] * 2 == flops(alone, "softmax")["forward"], "or its own"


def formats(dtype, model=MODEL):
    kept = ("matmul", "attention", "norm")
    return {(o.op, o.dtype) for o in operations(a_job(model, dtype=dtype)) if o.op in kept}


def test_operation_dtypes():
    """Only products are in float8 or tf32; in float8 only those of linear layers that the kernels support."""
    assert formats("float16") == {("matmul", "float16"), ("attention", "float16"), ("norm", "float16")}
    assert formats("tf32") == {("matmul", "tf32"), ("attention", "tf32"), ("norm", "float32")}
    eight = {("matmul", "float8"), ("matmul", "bfloat16"), ("attention", "bfloat16"), ("norm", "bfloat16")}
    assert formats("float8") == eight
    assert ("matmul", "float32") in formats("bfloat16", decoder("tiny-moe")), "a router"
    odd = msgspec.structs.replace(MODEL, ffn_hidden_size=40)
    in_float8 = {
        job.decoder.ffn_hidden_size: flops8(job) for job in (a_job(MODEL, dtype="float8"), a_job(odd, dtype="float8"))
    }
    tokens, attention = 128, 2 * (2 * 32 * 32 + 2 * 32 * 16)  # layers x (q and out, k and v)
    assert in_float8 == {48: 3 * 2 * tokens * (attention + 2 * 3 * 32 * 48), 40: 3 * 2 * tokens * attention}


def flops8(job):
    return sum(o.flops for o in operations(job) if o.op == "matmul" and o.dtype == "float8")


def test_unknown_optimizer_has_no_expected_operations(monkeypatch):
    from trainyard.train.rules import optimizer_rules as recipe

    known = {"theirs": None, **recipe.plugins.names("optimizers")}
    monkeypatch.setattr(recipe.plugins, "names", lambda group: known)
    assert not flops(a_job(optimizer="theirs"), "optimizer")
    assert flops(a_job(), "optimizer")


# Against torch


def decoder(name):
    return msgspec.convert(presets.load(name).model, Model)


def of(name, **change):
    return msgspec.structs.replace(decoder(name), **change)


DENSE = {
    "experts": 0,
    "top_k": 0,
    "moe_ffn_hidden_size": 0,
    "shared_experts": 0,
    "dense_layers": 0,
    "load_balancing": "none",
}
MODELS = {
    "llama": decoder("tiny"),
    "gpt": of("tiny", norm="layer", mlp="gelu", position="learned", bias="all", tie_word_embeddings=True, kv_heads=4),
    "gpt without biases": of("tiny", norm="layer", mlp="gelu", position="learned"),
    "qwen2": of("tiny", bias="qkv", layers=3),
    "qwen3": of("tiny", qk_norm=True),
    "all options": of("tiny", qk_norm=True, bias="all", norm="layer", tie_word_embeddings=True),
    "moe": decoder("tiny-moe"),
    "mixtral": of("tiny-moe", shared_experts=0, dense_layers=0),
    "all dense": of("tiny-moe", dense_layers=3),
    "latent": decoder("tiny-mla"),
    "latent, dense, one query matrix": of("tiny-mla", **DENSE, n_group=1, topk_group=1, q_lora_rank=0),
}


def products_counted(run):
    """(FLOPs of matrix products, FLOPs of attention) by torch's counter; `run` gets a context to run in.

    torch's counter does not know the grouped product of experts, nor the CPU's fused attention: so both are added here.
    Of a product of DTensors it counts the whole: here they are passed on, so that each rank's own part is counted.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributed.tensor import DTensor
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

    class Local(_FlopCounterMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented
            if any(isinstance(arg, torch.Tensor) and (arg.is_meta or isinstance(arg, FakeTensor)) for arg in args):
                return func(*args, **(kwargs or {}))  # torch asks what shape a whole product would have
            return super().__torch_dispatch__(func, types, args, kwargs)

    def attended(q, k, v, *_, **__):
        return 2 * q[0] * q[1] * q[2] * k[2] * (k[3] + v[3])

    aten = torch.ops.aten
    custom_mapping = {
        # (N, K) by (E, K, M) in groups of rows, or (K, N) by (N, M) in groups of columns
        aten._grouped_mm: lambda a, b, *_, **__: 2 * a[0] * a[1] * b[-1],
        aten._scaled_dot_product_flash_attention_for_cpu: attended,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda _, *qkv, **__: 2 * attended(*qkv),
    }
    counter = FlopCounterMode(display=False, custom_mapping=custom_mapping)
    with sdpa_kernel(SDPBackend.MATH), counter.mod_tracker, Local(counter):
        run()
    counted = Counter()
    for op, count in counter.get_flop_counts()["Global"].items():
        name = str(op).partition(".")[2]
        counted["attention" if name == "bmm" or "attention" in name else "matmul"] += count
    return counted["matmul"], counted["attention"]


def products_expected(job, pairs):
    """The same from our operations. torch's counter assumes the plain attention kernel, which also multiplies masked
    pairs and has 4 products backward instead of a fused kernel's 5. `pairs`: those it multiplies per sequence."""
    length, (key, value) = job.recipe.seq_len, widths(job.decoder)
    expected = flops(job, "attention")
    plain = expected["backward"] * (2 * key + 2 * value) / (3 * key + 2 * value)
    kept = length * (length + 1) / 2
    return sum(flops(job, "matmul").values()), (expected["forward"] + expected["recompute"] + plain) * pairs / kept


@pytest.mark.torch
@pytest.mark.parametrize("activation_checkpoint", ["none", "full", "full 2", "selective", "selective 2"])
@pytest.mark.parametrize("name", MODELS)
def test_flops_and_parameters_match_torch(name, activation_checkpoint):
    torch = pytest.importorskip("torch")
    from trainyard.train.model import blocks, initial_weights
    from trainyard.train.model.language_task import Language

    model, (again, every) = MODELS[name], (activation_checkpoint.split() + ["1"])[:2]
    job = a_job(model, micro_batch_size=8, activation_checkpoint=again, activation_checkpoint_every=int(every))
    task = Language(job)
    module = task.module()
    blocks.prepare(task.blocks(module), job.recipe)
    initial_weights.fill(module, task)
    assert initial_weights.count_parameters([module], None) == parameters(model, job.recipe.seq_len)
    tokens = torch.randint(256, (8, 16))
    counted = products_counted(lambda: task.loss(module(tokens), (tokens,)).backward())
    assert counted == pytest.approx(products_expected(job, pairs=16 * 16), rel=1e-9)


@pytest.mark.torch
@pytest.mark.parametrize("preset", ["tiny-mla", "tiny-moe"])
def test_muon_flops_match_torch(preset):
    pytest.importorskip("torch")
    from trainyard.train.model import initial_weights
    from trainyard.train.model.language_task import Language
    from trainyard.train.optimizers import make_optimizer

    job = a_job(decoder(preset), micro_batch_size=8, optimizer="muon")
    task = Language(job)
    module = task.module()
    initial_weights.fill(module, task)
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone()
    step = make_optimizer.make([module], job.recipe, None).step
    single, batched = products_counted(step)
    assert single + batched == flops(job, "matmul")["optimizer"]
    assert (batched > 0) == (job.decoder.experts > 0), "only the products of experts are batched"


SPREAD = {
    # Pairs that attention multiplies in a sequence of 16 (see train/parallel/context_parallel.py): each cp rank has two
    # chunks, and every chunk sees all keys before its end; in a ring, halves of parts interact.
    "tp": (Layout(tp=2), "tiny", {}, 16 * 16),
    "sp": (Layout(tp=2, sequence_parallel=True, loss_parallel=True), "qwen2", {}, 16 * 16),
    "pp": (
        Layout(pp=2),
        "qwen2",
        {"schedule": "1f1b", "activation_checkpoint": "full", "activation_checkpoint_every": 2},
        16 * 16,
    ),
    "pp interleaved": (
        Layout(pp=2, interleave=2),
        "deep",
        {"schedule": "interleaved", "activation_checkpoint": "full"},
        16 * 16,
    ),
    "cp": (Layout(cp=2), "tiny", {}, (4 + 8 + 12 + 16) * 4),
    "cp ulysses": (Layout(cp=2, cp_method="ulysses"), "tiny", {"activation_checkpoint": "full"}, 16 * 16),
    "cp ring": (Layout(cp=2, cp_method="ring"), "tiny", {}, 8 * 8 * 2 + 8 * 4 * 2),
    "ep": (Layout(dp_shard=2, ep=2), "moe", {"activation_checkpoint": "full"}, 16 * 16),
    "ep cp latent": (Layout(cp=2, ep=2), "latent", {}, (4 + 8 + 12 + 16) * 4),
    "fsdp tp pp": (Layout(dp_shard=2, tp=2, pp=2), "tiny", {"schedule": "gpipe"}, 16 * 16),
}
MODELS["tiny"], MODELS["deep"] = decoder("tiny"), of("tiny", layers=5)


def counted_here(ranks, job):
    """One rank's FLOPs of a step."""
    from trainyard.train.model.language_task import Bytes, Language
    from trainyard.train.parallel.parallelize import ParallelModel

    spread = ParallelModel(job, ranks, Language(job))
    share = job.batch // job.layout.batch_ranks
    batch = Bytes(job).batch(0, range(spread.batch_rank * share, (spread.batch_rank + 1) * share))
    return products_counted(lambda: spread.forward_backward(batch))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("mix", SPREAD)
def test_mean_over_ranks_matches_torch(mix):
    pytest.importorskip("torch")
    layout, model, recipe, pairs = SPREAD[mix]
    job = a_job(MODELS[model], layout, **recipe)
    by_rank = on_ranks(layout.ranks, counted_here, job)
    counted = [sum(parts) / layout.ranks for parts in zip(*by_rank)]
    assert counted == pytest.approx(products_expected(job, pairs), rel=1e-5)
