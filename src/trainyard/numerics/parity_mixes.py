"""The mixes of the parity matrix: every kind of parallelism, precision and recomputation, alone and combined.

Models and batches are as small as possible, as only the distribution of the work is under test. Sizes that divide
unevenly and different numbers of micro-batches are included. A mix is a named job: a model with changes to the fields
of its layout (`dp_shard=2`) and of its recipe (`dtype="bfloat16"`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from trainyard.job import Job
from trainyard.job_file import parse
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.numerics.parity import ParityMix
from trainyard.recipe import Recipe

_MODEL = Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
_EXPERTS = replace(_MODEL, experts=4, top_k=2, moe_ffn_hidden_size=32, shared_experts=1)
_LATENT = {"kv_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8}
_RECIPE = Recipe(seq_len=32, tokens_per_step=256, micro_batch_size=2, learning_rate=1e-2, seed=7)
_LAYOUT = set(Layout.__struct_fields__)


def _job(**model: Any) -> Job:
    """A decoder job of the smallest size, with changes to fields of its model."""
    return Job(model=replace(_MODEL, **model), recipe=_RECIPE)


_DENSE = _job()
_DEEP = _job(layers=4)
_SHALLOW = _job(layers=1)
_GPT = _job(norm="layer", mlp="gelu", position="learned", bias="all", kv_heads=4, tie_word_embeddings=True)
_QWEN = _job(bias="qkv", qk_norm=True)
_UNEVEN = _job(hidden_size=30, ffn_hidden_size=66, heads=6, head_dim=6, vocab=258)
_MOE = replace(_DENSE, model=_EXPERTS)
_MOE_LOSS = replace(_DENSE, model=replace(_EXPERTS, load_balancing="aux_loss"))
_DEEPSEEK = replace(_DENSE, model=replace(_EXPERTS, dense_layers=1, router="sigmoid", load_balancing="bias", **_LATENT))


def _mix(name: str, job: Job = _DENSE, **changes: Any) -> ParityMix:
    """The mix `name`: `job` with `changes` to fields of its layout and its recipe."""
    layout = {field: value for field, value in changes.items() if field in _LAYOUT}
    recipe = {field: value for field, value in changes.items() if field not in _LAYOUT}
    return ParityMix(
        name, replace(job, name=name, layout=replace(job.layout, **layout), recipe=replace(job.recipe, **recipe))
    )


def _data() -> Iterator[ParityMix]:
    """Mixes of data parallelism alone."""
    yield _mix("DDP", dp_replicate=2)
    yield _mix("DDP, no accumulation", dp_replicate=2, micro_batch_size=4)
    yield _mix("DDP, batches by two workers", dp_replicate=2, num_workers=2)
    yield _mix("ZeRO-1", dp_shard=2, zero=1)
    yield _mix("ZeRO-1 x DDP", dp_replicate=2, dp_shard=2, zero=1, optimizer_implementation="for-loop")
    yield _mix("FSDP2, ZeRO-2", dp_shard=2, zero=2)
    yield _mix("FSDP2, ZeRO-3", dp_shard=2)
    yield _mix("FSDP2, resharded always", dp_shard=2, reshard_after_forward="always")
    yield _mix("FSDP2, prefetching two units", dp_shard=2, forward_prefetch=2, backward_prefetch=2)
    yield _mix("FSDP2: GPT", _GPT, dp_shard=2)
    yield _mix("FSDP2 on 4", dp_shard=4)
    yield _mix("HSDP", dp_replicate=2, dp_shard=2)


def _shares() -> Iterator[ParityMix]:
    """Mixes of data parallelism with unequal batch shares."""
    yield _mix("DDP, shares 3:1", dp_replicate=2, batch_shares=(3, 1))
    yield _mix("DDP, shares 3:1: aux loss", _MOE_LOSS, dp_replicate=2, batch_shares=(3, 1))
    yield _mix("DDP, shares 3:1: float16", dp_replicate=2, dtype="float16", batch_shares=(3, 1))
    yield _mix("ZeRO-1, shares 1:3", dp_shard=2, zero=1, batch_shares=(1, 3))
    kept_gathered: dict[str, Any] = {"dp_shard": 2, "reshard_after_forward": "never"}
    yield _mix("FSDP2, ZeRO-2, shares 3:1", dp_shard=2, zero=2, batch_shares=(3, 1))
    yield _mix("FSDP2, ZeRO-3, shares 3:1", dp_shard=2, batch_shares=(3, 1))
    yield _mix("FSDP2, never resharded, shares 1:3", **kept_gathered, batch_shares=(1, 3), activation_checkpoint="full")
    hybrid: dict[str, Any] = {"dp_replicate": 2, "dp_shard": 2, "micro_batch_size": 1}
    yield _mix("HSDP, shares 3:1", **hybrid, batch_shares=(3, 1))
    yield _mix("HSDP, ZeRO-2, shares 1:2:4:1", **hybrid, zero=2, batch_shares=(1, 2, 4, 1))
    yield _mix("EP x HSDP, shares 3:1", _MOE, **hybrid, ep=2, batch_shares=(3, 1))
    yield _mix("CP x FSDP2, ZeRO-2, shares 1:3", cp=2, dp_shard=2, zero=2, batch_shares=(1, 3))
    yield _mix("PP x DDP, shares 3:1", pp=2, schedule="1f1b", dp_replicate=2, batch_shares=(3, 1))


def _tensor() -> Iterator[ParityMix]:
    """Mixes of tensor parallelism alone."""
    yield _mix("TP", tp=2)
    yield _mix("TP, SP", tp=2, sequence_parallel=True)
    yield _mix("TP, loss parallel", tp=2, loss_parallel=True)
    yield _mix("TP, SP, loss parallel: GPT", _GPT, tp=2, sequence_parallel=True, loss_parallel=True)
    yield _mix("TP, SP: Qwen", _QWEN, tp=2, sequence_parallel=True)


def _context() -> Iterator[ParityMix]:
    """Mixes of context parallelism alone, by each method."""
    for label, method in (("all-gather", "all_gather"), ("Ulysses", "ulysses"), ("ring", "ring")):
        yield _mix(f"CP {label}", cp=2, cp_method=method)
        yield _mix(f"CP {label} on 4", cp=4, cp_method=method)
    yield _mix("CP ring: latent attention", _job(**_LATENT), cp=2, cp_method="ring", activation_checkpoint="full")


def _pipeline() -> Iterator[ParityMix]:
    """Mixes of each pipeline schedule alone."""
    yield _mix("PP GPipe", pp=2, schedule="gpipe")
    yield _mix("PP 1F1B", pp=2, schedule="1f1b")
    yield _mix("PP 1F1B on 4", _DEEP, pp=4, schedule="1f1b")
    for label, schedule in (
        ("interleaved 1F1B", "interleaved"),
        ("looped BFS", "looped_bfs"),
        ("zero-bubble", "zero_bubble"),
        ("ZBV", "zbv"),
        ("DualPipeV", "dualpipev"),
    ):
        yield _mix(f"PP {label}", _DEEP, pp=2, interleave=2, schedule=schedule)


def _products() -> Iterator[ParityMix]:
    """Mixes of several axes together."""
    one_stage = {"pp": 2, "schedule": "1f1b"}  # per rank
    two_stages = {"pp": 2, "interleave": 2}
    yield _mix("TP x DDP", tp=2, dp_replicate=2)
    yield _mix("TP, SP x FSDP2: uneven", _UNEVEN, tp=2, sequence_parallel=True, dp_shard=2)
    yield _mix("TP x HSDP", tp=2, dp_replicate=2, dp_shard=2)
    yield _mix("CP x FSDP2, ZeRO-2", cp=2, dp_shard=2, zero=2)
    yield _mix("CP x HSDP", cp=2, dp_replicate=2, dp_shard=2)
    yield _mix("CP x TP, SP", cp=2, tp=2, sequence_parallel=True, activation_checkpoint="full")
    yield _mix("PP x DDP", **one_stage, dp_replicate=2)
    yield _mix("PP x FSDP2", **one_stage, dp_shard=2)
    yield _mix("PP x FSDP2, resharded always", **one_stage, dp_shard=2, reshard_after_forward="always")
    yield _mix("PP x HSDP", **one_stage, dp_replicate=2, dp_shard=2, micro_batch_size=1)
    yield _mix("PP x TP, SP", **one_stage, tp=2, sequence_parallel=True)
    yield _mix("PP x CP ring", **one_stage, cp=2, cp_method="ring")
    yield _mix("PP zero-bubble x DDP", _DEEP, **two_stages, schedule="zero_bubble", dp_replicate=2)
    yield _mix("PP ZBV x FSDP2", _DEEP, **two_stages, schedule="zbv", dp_shard=2)
    yield _mix("PP DualPipeV x CP", _DEEP, **two_stages, schedule="dualpipev", cp=2)
    yield _mix("PP x FSDP2 x TP", **one_stage, dp_shard=2, tp=2)
    yield _mix("FSDP2 x CP x TP", dp_shard=2, cp=2, tp=2)


def _experts() -> Iterator[ParityMix]:
    """Mixes of models with experts."""
    yield _mix("MoE, DDP", _MOE, dp_replicate=2)
    yield _mix("MoE, FSDP2", _MOE_LOSS, dp_shard=2)
    yield _mix("MoE, EP", _MOE, dp_shard=2, ep=2)
    yield _mix("MoE, EP x FSDP2", _MOE_LOSS, dp_shard=4, ep=2)
    yield _mix("MoE, EP x HSDP", _MOE, dp_replicate=2, dp_shard=2, ep=2)
    yield _mix("MoE, EP x CP", _MOE_LOSS, cp=2, ep=2)
    yield _mix("MoE, EP x PP", _MOE_LOSS, dp_shard=2, ep=2, pp=2, schedule="1f1b")
    yield _mix("DeepSeek-like, HSDP", _DEEPSEEK, dp_replicate=2, dp_shard=2)
    yield _mix("DeepSeek-like, EP", _DEEPSEEK, dp_shard=2, ep=2)
    yield _mix("MoE, EP x TP", _MOE, dp_shard=2, ep=2, tp=2)


def _recipes() -> Iterator[ParityMix]:
    """Mixes with other settings of the recipe: recomputation, compilation, optimizers, dtypes, offloading."""
    yield _mix("recomputed blocks, FSDP2", dp_shard=2, activation_checkpoint="full")
    yield _mix("recomputed ops, FSDP2", dp_shard=2, activation_checkpoint="selective")
    yield _mix("every second block recomputed, TP", tp=2, activation_checkpoint="full", activation_checkpoint_every=2)
    yield _mix("compiled blocks, DDP", _SHALLOW, dp_replicate=2, compile=True)
    yield _mix("compiled whole", _SHALLOW, compile="whole")
    yield _mix("foreach AdamW, FSDP2", dp_shard=2, optimizer_implementation="foreach")
    yield _mix("foreach SGD, FSDP2", dp_shard=2, optimizer_implementation="foreach", optimizer="sgd")
    yield _mix("Muon, DDP", dp_replicate=2, optimizer="muon")
    yield _mix("Muon, FSDP2", dp_shard=2, optimizer="muon")
    yield _mix("Muon, ZeRO-1", dp_shard=2, zero=1, optimizer="muon")
    yield _mix("Muon, MoE, FSDP2", _MOE, dp_shard=2, optimizer="muon")
    yield _mix("Muon, MoE, EP x FSDP2", _MOE, dp_shard=4, ep=2, optimizer="muon")
    yield _mix("Shampoo, FSDP2", dp_shard=2, optimizer="shampoo")
    yield _mix("bfloat16, FSDP2", dp_shard=2, dtype="bfloat16")
    yield _mix("bfloat16, TP", tp=2, dtype="bfloat16")
    yield _mix("bfloat16, PP ZBV", _DEEP, pp=2, interleave=2, schedule="zbv", dtype="bfloat16")
    yield _mix("float16 with scaling, DDP", dp_replicate=2, dtype="float16")
    yield _mix("float16 with scaling, FSDP2", dp_shard=2, dtype="float16")
    yield _mix("float8, FSDP2", dp_shard=2, dtype="float8")
    yield _mix("weights offloaded, FSDP2", dp_shard=2, offload=True)


def _others() -> Iterator[ParityMix]:
    """Models other than decoders; a token is a sample."""
    data_layouts = {"DDP": {"dp_replicate": 2}, "FSDP2": {"dp_shard": 2}}  # label -> fields of the layout
    for preset in ("tiny-vit", "tiny-resnet", "tiny-dit", "tiny-flux", "tiny-dit-plain", "tiny-unet"):
        job = _preset("vision" if preset in ("tiny-vit", "tiny-resnet") else "diffusion", preset)
        for label, layout in data_layouts.items():
            yield _mix(f"{preset.removeprefix('tiny-')}, {label}", job, **layout)
    yield _mix("resnet, DDP, shares 3:1", _preset("vision", "tiny-resnet"), dp_replicate=2, batch_shares=(3, 1))
    yield _mix("vit, TP x FSDP2", _preset("vision", "tiny-vit"), tp=2, dp_shard=2)
    for preset in ("tiny-dit", "tiny-flux", "tiny-dit-plain"):
        yield _mix(f"{preset.removeprefix('tiny-')}, TP", _preset("diffusion", preset), tp=2)
    for tables in ("replicated", "by_row", "by_table"):
        job = _preset("recommender", "tiny-dlrm", f', tables = "{tables}"')
        for label, layout in {**data_layouts, "HSDP": {"dp_replicate": 2, "dp_shard": 2}}.items():
            yield _mix(f"dlrm, {label}, tables {tables}", job, **layout)
    for tables, layout in {
        "replicated": {"dp_replicate": 2},
        "by_row": {"dp_shard": 2},
        "by_table": {"dp_replicate": 2},
    }.items():
        job = _preset("recommender", "tiny-dlrm", f', tables = "{tables}"')
        yield _mix(f"dlrm, row-wise AdaGrad, tables {tables}", job, **layout, embedding_optimizer="rowwise_adagrad")


def _preset(workload: str, name: str, more_sizes: str = "") -> Job:
    """A job with the sizes of a preset and 8 samples per step. `more_sizes`: further keys of `sizes` in TOML."""
    text = f"""
        workload = "{workload}"
        sizes = {{ from = "{name}"{more_sizes} }}
        [recipe]
        tokens_per_step = 8
        micro_batch_size = 2
        learning_rate = 1e-3
        seed = 7
        dataset = "synthetic"
    """
    return parse(text, name)


MIXES: tuple[ParityMix, ...] = (
    *_data(),
    *_shares(),
    *_tensor(),
    *_context(),
    *_pipeline(),
    *_products(),
    *_experts(),
    *_recipes(),
    *_others(),
)
