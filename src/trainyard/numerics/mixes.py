"""The mixes of the parity matrix: every kind of parallelism, precision and recomputation, alone and together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from trainyard.job import Job, Layout, Model, Recipe, parse
from trainyard.numerics.parity import Mix

_DENSE = Job(
    model=Model(name="dense", layers=4, width=32, ffn=64, heads=4, kv_heads=2, head_dim=8),
    recipe=Recipe(seq_len=32, tokens_per_step=512, microbatch=2, learning_rate=1e-2, seed=7),
)
_MOE = replace(
    _DENSE,
    model=Model(
        name="moe",
        layers=2,
        width=32,
        ffn=64,
        heads=4,
        kv_heads=2,
        head_dim=8,
        experts=4,
        active=2,
        expert_ffn=32,
        shared_experts=1,
        balance="loss",
    ),
)
_LATENT = replace(
    _DENSE,
    model=Model(
        name="latent",
        layers=2,
        width=32,
        ffn=64,
        heads=4,
        kv_heads=4,
        head_dim=8,
        experts=4,
        active=2,
        expert_ffn=32,
        shared_experts=1,
        dense_layers=1,
        router="sigmoid",
        balance="bias",
        q_rank=16,
        kv_rank=16,
        rope_dim=8,
        value_dim=8,
    ),
)
_SHALLOW = replace(_DENSE, model=replace(_DENSE.decoder, name="shallow", layers=1))
_LAYOUT = set(Layout.__struct_fields__)


def _mix(name: str, job: Job = _DENSE, **changes: Any) -> Mix:
    """`changes` to the layout and the recipe by their fields' names."""
    layout = {field: value for field, value in changes.items() if field in _LAYOUT}
    recipe = {field: value for field, value in changes.items() if field not in _LAYOUT}
    return Mix(
        name, replace(job, name=name, layout=replace(job.layout, **layout), recipe=replace(job.recipe, **recipe))
    )


def _data() -> Iterator[Mix]:
    yield _mix("DDP", dp_replicate=2)
    yield _mix("DDP, no accumulation", dp_replicate=2, microbatch=8)
    yield _mix("DDP, batches by two workers", dp_replicate=2, workers=2)
    yield _mix("ZeRO-1", dp_shard=2, zero=1)
    yield _mix("FSDP2, ZeRO-2", dp_shard=2, zero=2)
    yield _mix("FSDP2, ZeRO-3", dp_shard=2)
    yield _mix("FSDP2 on 4", dp_shard=4)
    yield _mix("HSDP", dp_replicate=2, dp_shard=2)


def _tensor() -> Iterator[Mix]:
    yield _mix("TP", tp=2)
    yield _mix("TP, SP", tp=2, sequence_parallel=True)
    yield _mix("TP, loss parallel", tp=2, loss_parallel=True)
    yield _mix("TP, SP, loss parallel", tp=2, sequence_parallel=True, loss_parallel=True)


def _context() -> Iterator[Mix]:
    yield _mix("CP all-gather", cp=2)
    yield _mix("CP Ulysses", cp=2, cp_method="ulysses")
    yield _mix("CP ring", cp=2, cp_method="ring")


def _pipeline() -> Iterator[Mix]:
    yield _mix("PP GPipe", pp=2, schedule="gpipe")
    yield _mix("PP 1F1B", pp=2, schedule="1f1b")
    yield _mix("PP 1F1B on 4", pp=4, schedule="1f1b")
    for label, schedule in (
        ("interleaved 1F1B", "interleaved"),
        ("looped BFS", "looped_bfs"),
        ("zero-bubble", "zero_bubble"),
        ("ZBV", "zbv"),
        ("DualPipeV", "dualpipev"),
    ):
        yield _mix(f"PP {label}", pp=2, interleave=2, schedule=schedule)


def _products() -> Iterator[Mix]:
    yield _mix("TP x DDP", tp=2, dp_replicate=2)
    yield _mix("TP, SP x FSDP2", tp=2, sequence_parallel=True, dp_shard=2)
    yield _mix("CP x FSDP2", cp=2, dp_shard=2)
    yield _mix("CP x TP", cp=2, tp=2)
    yield _mix("PP x DDP", pp=2, schedule="1f1b", dp_replicate=2)
    yield _mix("PP x FSDP2", pp=2, schedule="1f1b", dp_shard=2)
    yield _mix("PP x TP", pp=2, schedule="1f1b", tp=2)
    yield _mix("PP x CP", pp=2, schedule="1f1b", cp=2)
    yield _mix("PP x HSDP", pp=2, schedule="1f1b", dp_replicate=2, dp_shard=2)
    yield _mix("PP x FSDP2 x TP", pp=2, schedule="1f1b", dp_shard=2, tp=2)
    yield _mix("FSDP2 x CP x TP", dp_shard=2, cp=2, tp=2)
    yield _mix("PP interleaved x DDP x TP, SP", pp=2, interleave=2, schedule="interleaved", dp_replicate=2, tp=2)


def _experts() -> Iterator[Mix]:
    yield _mix("MoE, FSDP2", _MOE, dp_shard=2)
    yield _mix("MoE, EP", _MOE, dp_shard=2, ep=2)
    yield _mix("MoE, EP x FSDP2", _MOE, dp_shard=4, ep=2)
    yield _mix("MoE, EP x PP", _MOE, dp_shard=2, ep=2, pp=2, schedule="1f1b")
    yield _mix("MoE with MLA, HSDP", _LATENT, dp_replicate=2, dp_shard=2)
    yield _mix("MoE with MLA, EP", _LATENT, dp_shard=2, ep=2)


def _recipes() -> Iterator[Mix]:
    yield _mix("recomputed blocks, FSDP2", dp_shard=2, remat="full")
    yield _mix("recomputed ops, FSDP2", dp_shard=2, remat="op")
    yield _mix("every second block recomputed, TP", tp=2, remat="full", remat_every=2)
    yield _mix("compiled blocks, DDP", _SHALLOW, dp_replicate=2, compile=True)
    yield _mix("compiled whole", _SHALLOW, compile="whole")
    yield _mix("foreach AdamW, FSDP2", dp_shard=2, update="foreach")
    yield _mix("Muon, DDP", dp_replicate=2, optimizer="muon")
    yield _mix("Muon, FSDP2", dp_shard=2, optimizer="muon")
    yield _mix("Shampoo, FSDP2", dp_shard=2, optimizer="shampoo")
    yield _mix("bfloat16, FSDP2", dp_shard=2, dtype="bfloat16")
    yield _mix("bfloat16, TP", tp=2, dtype="bfloat16")
    yield _mix("float16 with scaling, FSDP2", dp_shard=2, dtype="float16")
    yield _mix("float8, FSDP2", dp_shard=2, dtype="float8")
    yield _mix("weights offloaded, FSDP2", dp_shard=2, offload=True)


def _others() -> Iterator[Mix]:
    """Other models than decoders; a token is a sample."""
    spread = {"DDP": {"dp_replicate": 2}, "FSDP2": {"dp_shard": 2}}
    for preset in ("tiny-vit", "tiny-resnet", "tiny-dit", "tiny-flux", "tiny-unet"):
        job = _preset("vision" if preset in ("tiny-vit", "tiny-resnet") else "diffusion", preset)
        for label, layout in spread.items():
            yield _mix(f"{preset.removeprefix('tiny-')}, {label}", job, **layout)
    yield _mix("vit, TP x FSDP2", _preset("vision", "tiny-vit"), tp=2, dp_shard=2)
    for tables in ("replicated", "by_row", "by_table"):
        job = _preset("recommender", "tiny-dlrm", f'tables = "{tables}"')
        for label, layout in spread.items():
            yield _mix(f"dlrm, {label}, tables {tables}", job, **layout)


def _preset(workload: str, name: str, size: str = "") -> Job:
    text = f"""
        workload = "{workload}"
        sizes = {{ from = "{name}"{f", {size}" if size else ""} }}
        [recipe]
        tokens_per_step = 16
        microbatch = 2
        learning_rate = 1e-3
        seed = 7
        text = "synthetic"
    """
    return parse(text, name)


MIXES: tuple[Mix, ...] = (
    *_data(),
    *_tensor(),
    *_context(),
    *_pipeline(),
    *_products(),
    *_experts(),
    *_recipes(),
    *_others(),
)
