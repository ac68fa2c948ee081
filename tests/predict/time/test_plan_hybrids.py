"""Planning for hybrids of attention and state spaces: published sizes, the scan against a numpy implementation,
config.json and Megatron's arguments, and refused models."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.models.test_models import ANYTHING
from tests.refused import code_of, missing_values, refused
from trainyard import machine
from trainyard.cli.main import answer
from trainyard.errors import BadFile, BadInput, BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import hugging_face_architectures, presets
from trainyard.predict.configs import detect_format
from trainyard.predict.configs.config_keys import CommandArguments
from trainyard.predict.economics import step_cost
from trainyard.predict.inputs import cases, hardware, layout_space
from trainyard.predict.inputs.cases import Cases
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import Keeps, PlannerInput
from trainyard.predict.memory import framework_memory
from trainyard.predict.search.search import search
from trainyard.predict.time import data_parallel, predicted_ledger, shapes, state_space, step
from trainyard.recipe import Recipe
from trainyard.workloads.ops import transformer_ops

HYBRIDS = [name for name in presets.known() if "hybrid_pattern" in (presets.load(name).model or {})]
SPACES = {"ssm_heads": 8, "ssm_head_dim": 16, "ssm_groups": 4, "ssm_state_size": 12, "ssm_chunk_size": 64}
PLAIN = Model(
    layers=6, hybrid_pattern="M-M*M-", hidden_size=64, ffn_hidden_size=192, heads=8, kv_heads=4, head_dim=8, vocab=512,
    mlp="relu2",
    position="none", **SPACES,
)  # fmt: skip
ROUTED = replace(
    PLAIN, hybrid_pattern="ME*EM-", experts=8, top_k=2, moe_ffn_hidden_size=96, shared_experts=1, moe_latent_size=32
)
CHANNELS = replace(
    PLAIN,
    hybrid_pattern="M-*EM-",
    experts=4,
    top_k=2,
    moe_ffn_hidden_size=96,
    ssm_dt_rank=4,
    ssm_heads=128,
    ssm_head_dim=1,
)
MODELS = {"plain": PLAIN, "experts": ROUTED, "channels": CHANNELS}
H100 = machine.load("h100")
WHERE = hardware.of_machine(H100, "bfloat16")


def a_job(model: Model, recipe: dict[str, Any] | None = None, **layout: Any) -> Job:
    values = {"seq_len": 256, "tokens_per_step": 256 * 16, "dtype": "bfloat16"} | (recipe or {})
    return Job(name=model.name, model=model, layout=Layout(**layout), recipe=Recipe(**values))


def preset(name: str) -> Model:
    return msgspec.convert(presets.load(name).model, Model)


def weights(model: Model) -> tuple[float, float]:
    """Total parameters and those active per token, without the last norm."""
    case = cases.of_jobs([a_job(model)])
    counts = data_parallel.layer_weights(case, shapes.weights(case))
    common, expert = (float(count[0]) * model.layers for count in counts)
    ends = float(data_parallel.count_end_parameters(case)[0])
    return common + expert + ends, common + ends + expert * model.top_k / max(1, model.experts)


# Sizes


@pytest.mark.parametrize("name", HYBRIDS)
def test_parameters_match_published_counts(name: str) -> None:
    published, (every, used) = presets.load(name), weights(preset(name))
    assert published.parameters is not None
    assert every == pytest.approx(published.parameters.value, rel=0.01)
    if published.active:
        assert used == pytest.approx(published.active.value, rel=0.07)


def test_parameters_of_nemotron_h_8b_are_exact() -> None:
    last_norm = 4096
    assert round(weights(preset("nemotron-h-8b"))[0]) + last_norm == 8_100_852_736


def shapes_of(model: Model) -> int:
    """Parameters of a state space, from the tensor shapes in mamba_ssm's and Jamba's code."""
    width, inner, state = model.hidden_size, model.ssm_heads * model.ssm_head_dim, model.ssm_state_size
    channels = inner if model.ssm_dt_rank else inner + 2 * model.ssm_groups * state
    tensors = [
        (channels, model.ssm_conv_kernel),
        (channels,),
        (inner, width),
        (inner,),
        (width,),
    ]  # convolution, out, norms
    if model.ssm_dt_rank:
        tensors += [(width, 2 * inner), (inner, model.ssm_dt_rank + 2 * state), (model.ssm_dt_rank, inner), (inner,)]
        tensors += [(inner, state), (inner,)]  # decay and skip connection
    else:
        tensors += [(width, inner + channels + model.ssm_heads), *[(model.ssm_heads,)] * 3]
    return sum(int(np.prod(shape)) for shape in tensors)


@pytest.mark.parametrize("name", MODELS)
def test_one_more_layer_adds_the_parameters_of_its_tensors(name: str) -> None:
    model = MODELS[name]
    more = replace(model, hybrid_pattern=model.hybrid_pattern + "M", layers=model.layers + 1)
    assert weights(more)[0] - weights(model)[0] == pytest.approx(shapes_of(model), rel=1e-12)


# The scan


class CountingProduct:
    """Matrix product that counts its FLOPs."""

    def __init__(self) -> None:
        self.flops = 0

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


def scan_in_chunks(
    x: np.ndarray, b: np.ndarray, c: np.ndarray, decay: np.ndarray, chunk: int, product: CountingProduct
) -> np.ndarray:
    """The chunked scan, head by head (arXiv:2405.21060, section 6): (T, H, P) from x (T, H, P), b and c (T, G, N) and
    decay (T, H)."""
    steps, heads, dim = x.shape
    groups, size = b.shape[1:]
    output = np.zeros_like(x)
    state = np.zeros((heads, size, dim))
    for start in range(0, steps, chunk):
        here = slice(start, start + chunk)
        scores = [product(c[here, group], b[here, group].T) for group in range(groups)]
        for head in range(heads):
            group = head * groups // heads
            so_far = np.cumsum(np.log(decay[here, head]))
            between = np.tril(np.exp(np.minimum(so_far[:, None] - so_far[None, :], 0)))
            inside = product(scores[group] * between, x[here, head])
            read = product(c[here, group] * np.exp(so_far)[:, None], state[head])
            output[here, head] = inside + read
            left = np.exp(so_far[-1] - so_far)[:, None]
            state[head] = np.exp(so_far[-1]) * state[head] + product((b[here, group] * left).T, x[here, head])
    return output


def scan_token_by_token(x: np.ndarray, b: np.ndarray, c: np.ndarray, decay: np.ndarray) -> np.ndarray:
    heads, groups = x.shape[1], b.shape[1]
    output, state = np.zeros_like(x), np.zeros((heads, b.shape[2], x.shape[2]))
    for at in range(len(x)):
        for head in range(heads):
            group = head * groups // heads
            state[head] = decay[at, head] * state[head] + np.outer(b[at, group], x[at, head])
            output[at, head] = c[at, group] @ state[head]
    return output


@pytest.mark.parametrize("chunk", [4, 8, 16])
def test_scan_flops_match_a_chunked_implementation(chunk: int) -> None:
    """The implementation equals the recurrence token by token, and its FLOPs equal the predicted ones."""
    random = np.random.default_rng(0)
    steps, heads, dim, groups, size = 16, 4, 3, 2, 5
    x, b, c = (random.standard_normal((steps, *shape)) for shape in ((heads, dim), (groups, size), (groups, size)))
    decay, product = random.uniform(0.5, 1, (steps, heads)), CountingProduct()
    assert np.allclose(scan_in_chunks(x, b, c, decay, chunk, product), scan_token_by_token(x, b, c, decay))
    model = replace(
        PLAIN, ssm_heads=heads, ssm_head_dim=dim, ssm_groups=groups, ssm_state_size=size, ssm_chunk_size=chunk
    )
    case = cases.of_jobs([a_job(model, {"seq_len": steps, "tokens_per_step": steps})])
    assert sum(float(matmul.flops[0]) for matmul in state_space.products(case)) == product.flops


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_a_hybrid_are_the_sum_of_its_layers(name: str) -> None:
    """In any order of the layers; those of a decoder are the sum of attention's and MLPs'."""
    model = MODELS[name]

    def flops(pattern: str) -> float:
        experts = {"experts": 0} if "E" not in pattern else {}
        hybrid = replace(model, hybrid_pattern=pattern, layers=len(pattern), **experts)
        return float(step_cost.model_flops(cases.of_jobs([a_job(hybrid)]))[0])

    more = [flops(model.hybrid_pattern + letter) - flops(model.hybrid_pattern) for letter in "M*-"]
    assert all(added > 0 for added in more)
    assert flops(model.hybrid_pattern + "M*-M") == pytest.approx(
        flops(model.hybrid_pattern) + 2 * more[0] + more[1] + more[2]
    )
    assert flops(model.hybrid_pattern[::-1]) == flops(model.hybrid_pattern)
    dense = replace(
        PLAIN,
        hybrid_pattern="",
        layers=4,
        mlp="gelu",
        position="rope",
        **dict.fromkeys(SPACES, 0) | {"ssm_chunk_size": 1},
    )
    plain = replace(PLAIN, hybrid_pattern="M" + 4 * "*-", layers=9)
    short = replace(PLAIN, hybrid_pattern="M*-", layers=3)
    each = [float(step_cost.model_flops(cases.of_jobs([a_job(hybrid)]))[0]) for hybrid in (plain, short)]
    workload = transformer_ops.model_flops(a_job(dense))
    head = 3 * 2 * 64 * 512 * 256 * 16
    assert (each[0] - each[1]) / 3 == pytest.approx((workload - head) / 4, rel=1e-2), (
        "the planner counts half of the scores"
    )


# Properties

SIZES = st.sampled_from([1, 2, 4])
ROWS = st.fixed_dictionaries(
    {
        "tp": SIZES, "pp": SIZES, "cp": SIZES, "ep": SIZES, "dp_replicate": SIZES, "dp_shard": SIZES,
        "zero": st.sampled_from([1, 2, 3]), "interleave": st.just(1), "micro_batch_size": SIZES,
        "activation_checkpoint": st.sampled_from([0, 1, 2]), "schedule": st.just(0), "offload": st.just(0),
    }
)  # fmt: skip
SOME = st.sampled_from([*MODELS.values(), preset("nemotron-3-super"), preset("jamba-1.5-mini")])


def one_case(model: Model, row: dict[str, int]) -> Cases:
    wanted = PlannerInput(model, 1, 8, row["dp_replicate"] * row["dp_shard"] * row["micro_batch_size"] * 4, 512)
    return layout_space.as_cases(
        wanted, layout_space.LayoutSpace({axis: np.array([value]) for axis, value in row.items()}), Keeps(2, 4, 12)
    )


@given(SOME, ROWS)
def test_every_predicted_step_balances(model: Model, row: dict[str, int]) -> None:
    predicted = step.step(one_case(model, row), WHERE, Constants())
    assert sum((np.asarray(line.seconds) for line in predicted.lines), np.zeros(1)) == pytest.approx(predicted.wall)
    for line in predicted.lines:
        assert np.min(line.seconds) >= 0 <= np.min(line.hidden), line
    assert any(line.account == "compute/reduction" and np.max(line.seconds) > 0 for line in predicted.lines)
    predicted_ledger.ledger(predicted, 0, 1, "h100")


@given(SOME, ROWS)
def test_faster_hardware_is_never_slower(model: Model, row: dict[str, int]) -> None:
    case = one_case(model, row)
    slow = float(step.step(case, WHERE, Constants()).wall[0])
    for name in ("peak", "bandwidth", "intra_node", "inter_node"):
        better = dataclasses.replace(WHERE, **{name: 2 * getattr(WHERE, name)})
        assert float(step.step(case, better, Constants()).wall[0]) <= slow * (1 + 1e-9), name


@given(st.lists(st.tuples(SOME, SIZES, SIZES), min_size=2, max_size=4))
def test_a_case_costs_the_same_alone_and_in_a_batch(choices: list[tuple[Model, int, int]]) -> None:
    """In a batch with other hybrids and a decoder."""
    jobs = [a_job(model, {"micro_batch_size": size}, tp=tp) for model, size, tp in choices]
    jobs.append(a_job(replace(preset("tiny"), layers=3)))
    together = replace_own(cases.of_jobs(jobs))
    walls, bytes_of = step.step(together, WHERE, Constants()).wall, framework_memory.memory(together).total
    for index, job in enumerate(jobs):
        alone = replace_own(cases.of_jobs([job]))
        assert float(step.step(alone, WHERE, Constants()).wall[0]) == pytest.approx(float(walls[index]), rel=1e-12)
        assert float(framework_memory.memory(alone).total[0]) == pytest.approx(float(bytes_of[index]), rel=1e-12)


def replace_own(batch: Cases) -> Cases:
    """The cases as a published framework runs them."""
    columns = {field.name: getattr(batch, field.name) for field in fields(Cases)}
    return Cases(**(columns | {"native": cases.column(0)}))


@given(SOME, ROWS)
def test_recomputation_and_zero_never_need_more_memory(model: Model, row: dict[str, int]) -> None:
    for first in (True, False):
        kept = [
            framework_memory.of_stage(
                one_case(model, row | {"activation_checkpoint": activation_checkpoint}), first
            ).activations
            for activation_checkpoint in (0, 2)
        ]
        assert float(np.ravel(kept[1])[0]) <= float(np.ravel(kept[0])[0]) * 1.5 + 1
        parts = [framework_memory.of_stage(one_case(model, row | {"zero": zero}), first) for zero in (1, 2, 3)]
        for part in ("parameters", "gradients", "optimizer"):
            sizes = [float(np.ravel(getattr(stage, part))[0]) for stage in parts]
            assert sizes == sorted(sizes, reverse=True), part


# The search


def search_for(model: Model, framework: str = "megatron", devices: int = 8, **more: Any) -> Any:
    return search(PlannerInput(model, devices, 8, 16, 512, **more), H100, FRAMEWORKS[framework], most=10**6)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed"])
def test_layouts_divide_the_dimensions_of_a_state_space(framework: str) -> None:
    layouts = [choice.plan.job.layout for choice in search_for(ROUTED, framework).choices]
    assert layouts
    for layout in layouts:
        tp, pp = layout.tp, layout.pp
        assert ROUTED.ssm_groups % tp == ROUTED.kv_heads % tp == ROUTED.ssm_heads % (tp * layout.cp) == 0
        if framework == "megatron":
            assert layout.interleave == 1
            assert ROUTED.layers % pp == 0
        if framework == "deepspeed":
            assert tp == pp == 1
    if framework == "megatron":
        assert {layout.tp for layout in layouts} == {1, 2, 4}
        assert {layout.pp for layout in layouts} == {1, 2}


def test_frameworks_without_these_layers_are_refused() -> None:
    with refused(BadJob, "our own runner", "hybrid_pattern = 'M-M*M-'", "--for"):
        search_for(PLAIN, "trainyard")
    with refused(BadJob, "Megatron Core", f"ssm_dt_rank = {CHANNELS.ssm_dt_rank}", "--for"):
        search_for(CHANNELS, "megatron")
    with refused(BadJob, "hybrid_pattern = 'M-M*M-'", "$.model", "--for megatron"):
        transformer_ops.check(a_job(PLAIN))
    for field, value in (("mlp", "relu2"), ("position", "none")):
        with refused(BadJob, f"{field} = '{value}'", "$.model"):
            transformer_ops.check(a_job(replace(preset("tiny"), **{field: value})))


@pytest.mark.parametrize("name", ["nemotron-h-8b", "nemotron-3-nano", "nemotron-3-super"])
def test_megatron_arguments_round_trip(name: str) -> None:
    model = preset(name)
    job = a_job(model, dp_shard=4, zero=1, tp=2, sequence_parallel=True, loss_parallel=True)
    said = FRAMEWORKS["megatron"].write_config(job)
    assert "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec" in said
    assert "pretrain_mamba.py" in said
    read = detect_format.read(said.encode(), f"{name}.args", CommandArguments(8))
    assert (read.unknown, read.approximated) == ((), ())
    assert read.job == job


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("MEM|*-", ["'|'", "their.args"]),
        ("M-", ["their.args", 2, "--num-layers is 6"]),
    ],
)
def test_unknown_layer_pattern_is_refused(pattern: str, values: list[object]) -> None:
    arguments = FRAMEWORKS["megatron"].write_config(a_job(PLAIN)).replace("'M-M*M-'", f"'{pattern}'")
    with refused(BadFile, *values):
        detect_format.read(arguments.encode(), "their.args", CommandArguments(1))


# What a model may be


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({"hybrid_pattern": "MxM*M-"}, ["'x'"]),
        ({"hybrid_pattern": "M*"}, ["2 letters", "layers = 6", "layers = 2"]),
        ({"hybrid_pattern": "MEM*M-"}, ["experts = 0", "1 layers"]),
        ({"hybrid_pattern": "------"}, ["hybrid_pattern = '------'", "0 state space layers"]),
        ({"dense_layers": 1}, ["dense_layers = 1", "hybrid_pattern"]),
        ({"ssm_state_size": 0}, ["ssm_state_size = 0", 1]),
        ({"ssm_groups": 3}, ["ssm_heads 8 % ssm_groups 3 = 2"]),
    ],
)
def test_impossible_hybrids_are_refused(changed: dict[str, Any], values: list[object]) -> None:
    with refused(BadJob, *values):
        replace(PLAIN, **changed)


# From a config.json

NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_head_dim": 128, "auto_map": {}, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "hidden_dropout": 0.0,
    "hidden_size": 4096, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "intermediate_size": 21504, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu",
    "mamba_num_heads": 128, "mamba_proj_bias": False, "max_position_embeddings": 8192, "mlp_bias": False,
    "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 32,
    "num_hidden_layers": 52, "num_key_value_heads": 8, "num_logits_to_keep": 1, "rescale_prenorm_residual": True,
    "residual_in_fp32": False, "rms_norm_eps": 1e-05, "ssm_state_size": 128, "tie_word_embeddings": False,
    "time_step_limit": [0.0, float("inf")], "time_step_rank": 256, "use_bias": False, "use_conv_bias": True,
    "use_mamba_kernels": True, "vocab_size": 131072,
}  # fmt: skip
NANO = NEMOTRON_H | {
    "hidden_size": 2688, "intermediate_size": 1856, "mamba_num_heads": 64, "num_key_value_heads": 2,
    "hybrid_override_pattern": None, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "norm_topk_prob": True,
    "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
    "layers_block_type": [
        {"M": "mamba", "E": "moe", "*": "attention"}[letter]
        for letter in "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    ],
}  # fmt: skip
JAMBA = {
    "architectures": ["JambaForCausalLM"], "attention_dropout": 0.0, "attn_layer_offset": 4, "attn_layer_period": 8,
    "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256,
    "mamba_expand": 2, "mamba_proj_bias": False, "model_type": "jamba", "num_attention_heads": 32, "num_experts": 16,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "output_router_logits": False,
    "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
    "use_mamba_kernels": True, "vocab_size": 65536,
}  # fmt: skip
BAMBA = {
    "architectures": ["BambaForCausalLM"], "attn_layer_indices": [9, 18, 27], "attention_bias": False,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "mamba_chunk_size": 256,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2,
    "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_proj_bias": False, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
    "vocab_size": 128256,
}  # fmt: skip
GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_multiplier": 0.0078125, "embedding_multiplier": 12,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 768, "logits_scaling": 16,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_proj_bias": False, "num_attention_heads": 32,
    "num_experts_per_tok": 10, "num_hidden_layers": 40, "num_key_value_heads": 8, "num_local_experts": 72,
    "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
    "shared_intermediate_size": 1536, "tie_word_embeddings": True, "vocab_size": 100352,
}  # fmt: skip


def converted(config: dict[str, Any], planned: bool = True) -> dict[str, Any]:
    return hugging_face_architectures.model(json.dumps(config).encode(), "some/config.json", planned=planned)


@pytest.mark.parametrize(
    ("name", "config"), [("nemotron-h-8b", NEMOTRON_H), ("nemotron-3-nano", NANO), ("jamba-1.5-mini", JAMBA)]
)
def test_config_matches_the_preset(name: str, config: dict[str, Any]) -> None:
    keys = converted(config, planned=False)
    model = msgspec.convert(keys, Model)
    assert replace(model, name=name) == preset(name)
    assert keys["name"] == "some", "no key was ignored"


def test_window_is_planned_as_full_attention_and_not_trained() -> None:
    config = {**JAMBA, "sliding_window": 1024}
    result = hugging_face_architectures.convert(json.dumps(config).encode(), "some/config.json", planned=True)
    assert result.fields == converted(JAMBA)
    assert any("sliding_window = 1024" in text for text in result.approximated)
    with refused(BadFile, "some/config.json", 'without = ["sliding_window"]', 1024):
        converted(config, planned=False)


@pytest.mark.parametrize(("config", "billions", "left"), [(BAMBA, 9.78, ""), (GRANITE, 32.2, "embedding_multiplier")])
def test_other_families_match_published_sizes(config: dict[str, Any], billions: float, left: str) -> None:
    result = hugging_face_architectures.convert(json.dumps(config).encode(), "some/config.json", planned=True)
    assert weights(msgspec.convert(result.fields, Model))[0] / 1e9 == pytest.approx(billions, rel=2e-3)
    assert not left or left in result.ignored


@pytest.mark.parametrize(
    ("config", "changed", "values"),
    [
        (
            NEMOTRON_H,
            {"hybrid_override_pattern": "M-MX"},
            ["$.hybrid_override_pattern", "'X'", "M mamba"],
        ),
        (NEMOTRON_H, {"num_hidden_layers": 50}, ["$.num_hidden_layers", 50, "52 layers"]),
        (NEMOTRON_H, {"layers_block_type": ["mamba", "swa"]}, ["$.layers_block_type", "'swa'", "mamba"]),
        (NEMOTRON_H, {"hybrid_override_pattern": None}, ["$.hybrid_override_pattern"]),
        (NEMOTRON_H, {"num_nextn_predict_layers": 1}, ['without = ["num_nextn_predict_layers"]', 1]),
        (
            NANO,
            {"moe_shared_expert_intermediate_size": 3000},
            ["moe_shared_expert_intermediate_size", "3000 % 1856 = 1144"],
        ),
        (BAMBA, {"attn_layer_indices": [40]}, ["$.attn_layer_indices", "[40]", "32 layers"]),
        (
            BAMBA,
            {"mamba_n_heads": 100},
            ["$.mamba_n_heads", "100 x mamba_d_head 64 = 6400", "mamba_expand 2 x hidden_size 4096 = 8192"],
        ),
        (GRANITE, {"layer_types": ["mamba"]}, ["$.layer_types", "40 layers"]),
        (
            GRANITE,
            {"position_embedding_type": {}},
            ["position_embedding_type", "{}", 'without = ["position_embedding_type"]'],
        ),
        (JAMBA, {"architectures": ["Zamba2ForCausalLM"]}, ["$.architectures", "Zamba2ForCausalLM", "attention"]),
        (JAMBA, {"architectures": ["FalconH1ForCausalLM"]}, ["$.architectures", "FalconH1ForCausalLM", "state space"]),
    ],
)
def test_unsupported_config_keys_are_refused_by_name(
    config: dict[str, Any], changed: dict[str, Any], values: list[object]
) -> None:
    with refused(BadFile, "some/config.json", *values):
        converted(config | changed)


@settings(max_examples=300)
@given(st.sampled_from([NEMOTRON_H, NANO, JAMBA, BAMBA, GRANITE]), st.data())
def test_hostile_config_is_refused_or_gives_a_model(config: dict[str, Any], data: st.DataObject) -> None:
    changed = dict(config)
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        changed[key] = data.draw(ANYTHING)
    try:
        model = msgspec.convert(converted(changed), Model)
    except (BadInput, msgspec.ValidationError):
        return
    assert len(model.hybrid_pattern) == model.layers


# The command


def test_plan_accepts_a_hybrid_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "Nemotron-H-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(NEMOTRON_H))
    out = tmp_path / "run.args"
    arguments = ["plan", str(folder / "config.json"), "--machine", "h100", "--devices", "64", "--batch", "512"]
    assert answer([*arguments, "--seq-len", "8192", "--for", "megatron", "--out", str(out), "--full"]) == 0
    printed = capsys.readouterr().out
    assert "Nemotron-H-8B on 64" in printed
    assert "Reduction" in printed
    assert answer(["plan", "check", str(out), "--machine", "h100", "--devices", "64", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["choices"][0]
    assert first["plan"]["job"]["model"]["hybrid_pattern"] == NEMOTRON_H["hybrid_override_pattern"]
    assert answer([*arguments, "--seq-len", "8192"]) == 2
    failure = capsys.readouterr().err
    assert code_of(failure) == "bad-job"
    assert (
        missing_values(failure, "our own runner", f"hybrid_pattern = {NEMOTRON_H['hybrid_override_pattern'][:20]!r}")
        == []
    )
