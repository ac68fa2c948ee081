"""Laws of fine-tuning: adapters need less memory and time than training all weights, NF4 weights less memory still."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.predict.economics.model_size import ModelSize, checkpoint_bytes, measure_model
from trainyard.predict.inputs import cases, layout_space
from trainyard.predict.inputs.adapter_support import fine_tuned
from trainyard.predict.inputs.fine_tuning import NF4_BYTES, FineTuning, Method, Targets
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.layout_cost import LayoutCost, cost_job
from trainyard.recipe import Recipe

LLAMA_8B, LLAMA_70B = (read_request(f"llama3-{size}", None, None, None).model for size in ("8b", "70b"))
RANKS = st.sampled_from([1, 8, 16, 64])
TARGETS = st.sampled_from(["all", "attention", "mlp"])
CHECKPOINTS = st.sampled_from(["none", "full"])
SEQ_LEN = 2048


def settings_of(method: Method, rank: int = 16, targets: Targets = "all") -> FineTuning:
    return FineTuning(method=method, rank=rank if method != "sft" else 0, targets=targets)


def job_of(model: Any, recipe: dict[str, Any] | None = None, **layout: Any) -> Job:
    defaults: dict[str, Any] = {"dtype": "bfloat16", "seq_len": SEQ_LEN, "tokens_per_step": 128 * SEQ_LEN}
    return Job(name="m", model=model, layout=Layout(**layout), recipe=Recipe(**defaults | (recipe or {})))


def cost(tuning: FineTuning | None, job: Job, framework: str = "deepspeed", name: str = "h100") -> LayoutCost:
    return cost_job(job, machine.load(name), fine_tuned(framework, tuning))


def size_of(tuning: FineTuning, framework: str = "deepspeed", model: Any = LLAMA_70B) -> ModelSize:
    return measure_model(job_of(model), fine_tuned(framework, tuning).keeps.columns)


def wall(choice: LayoutCost) -> int:
    return choice.plan.ledger.wall_ns


def accounts(choice: LayoutCost) -> dict[str, int]:
    return {account.label: time_ns for account, time_ns in choice.plan.ledger.by_account().items()}


DATA_PARALLEL = st.sampled_from(
    [{"dp_shard": 8, "zero": zero} for zero in (1, 2, 3)] + [{"dp_replicate": 8}, {"dp_shard": 32, "zero": 3}, {}]
)


@settings(deadline=None)
@given(DATA_PARALLEL, RANKS, TARGETS, CHECKPOINTS, st.sampled_from([1, 4]))
def test_memory_of_sft_lora_and_qlora_decreases(
    layout: dict[str, int], rank: int, targets: Targets, checkpoint: str, micro_batch: int
) -> None:
    job = job_of(LLAMA_8B, {"activation_checkpoint": checkpoint, "micro_batch_size": micro_batch}, **layout)
    sft, lora, qlora = (cost(settings_of(method, rank, targets), job) for method in ("sft", "lora", "qlora"))
    assert sft.reserved > lora.reserved > qlora.reserved
    assert lora.plan.memory["parameter"] > sft.plan.memory["parameter"]  # the adapters are in addition
    assert lora.plan.memory["gradient"] < 0.05 * sft.plan.memory["gradient"]
    assert lora.plan.memory["optimizer_state"] < 0.05 * sft.plan.memory["optimizer_state"]
    assert lora.plan.memory["activation"] <= 1.02 * sft.plan.memory["activation"]


@settings(deadline=None)
@given(
    st.sampled_from([{"tp": 2}, {"tp": 4, "dp_replicate": 2}, {"pp": 4, "tp": 2}, {"dp_shard": 8, "zero": 1}]),
    st.sampled_from([8, 16, 64]), TARGETS, CHECKPOINTS,
)  # fmt: skip
def test_adapters_need_less_memory_with_model_parallelism(
    layout: dict[str, int], rank: int, targets: Targets, checkpoint: Any
) -> None:
    """Their memory traffic, of which tp divides a part only, can take as long as the products that they save."""
    schedule = "1f1b" if layout.get("pp", 1) > 1 else "none"
    recipe = {"activation_checkpoint": checkpoint, "schedule": schedule, "micro_batch_size": 2}
    job = job_of(LLAMA_70B, recipe, **layout)
    sft, lora = (cost(settings_of(method, rank, targets), job, "megatron") for method in ("sft", "lora"))
    assert lora.reserved < sft.reserved
    assert wall(lora) < wall(sft) * (1.0 if targets == "attention" else 1.05)


@settings(deadline=None)
@given(DATA_PARALLEL, RANKS, TARGETS, CHECKPOINTS)
def test_lora_is_faster_than_sft_and_slows_down_with_rank(
    layout: dict[str, int], rank: int, targets: Targets, checkpoint: str
) -> None:
    job = job_of(LLAMA_70B, {"activation_checkpoint": checkpoint, "micro_batch_size": 2}, **layout)
    sft, lora, larger = (
        cost(tuning, job)
        for tuning in (settings_of("sft"), settings_of("lora", rank, targets), settings_of("lora", 4 * rank, targets))
    )
    assert wall(lora) < wall(sft)
    assert wall(lora) <= wall(larger)
    assert not lora.plan.calibrated


@given(RANKS, TARGETS, st.sampled_from(["deepspeed", "megatron"]))
def test_trained_parameters_are_proportional_to_rank(rank: int, targets: Targets, framework: str) -> None:
    once, twice = (
        size_of(settings_of("lora", factor * rank, targets), framework).trained_parameters for factor in (1, 2)
    )
    assert once is not None
    assert twice == 2 * once


def test_trained_parameters_are_those_of_the_libraries() -> None:
    """PEFT prints `trainable params: 207,093,760` for Llama 3 70B and 41,943,040 for 8B, with rank 16 on all linear
    layers; Megatron-Bridge has one adapter for queries, keys and values, and one for gate and up projections."""
    assert size_of(settings_of("lora")).trained_parameters == 207_093_760
    assert size_of(settings_of("qlora"), model=LLAMA_8B).trained_parameters == 41_943_040
    fused = 16 * (8192 + 10240) + 16 * (8192 + 8192) + 16 * (8192 + 2 * 28672) + 16 * (28672 + 8192)
    assert size_of(settings_of("lora"), "megatron").trained_parameters == 80 * fused
    attention, mlp = (size_of(settings_of("lora", targets=part)).trained_parameters for part in ("attention", "mlp"))
    assert attention is not None
    assert mlp is not None
    assert attention + mlp == 207_093_760
    assert size_of(settings_of("sft")).trained_parameters is None


def test_flops_are_four_per_frozen_parameter_in_the_limit_of_rank_0() -> None:
    """The embedding is looked up, and attention's scores have a backward pass of twice the forward pass."""
    frozen, all_trained = (
        measure_model(job_of(LLAMA_70B), adapters).flops_per_token
        for adapters in ({"adapters": 1e-9, "mlp_adapters": 1e-9}, {})
    )
    matrices = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 128256 * 8192
    scores = 3 * 2 * SEQ_LEN * 8192 * 80
    assert all_trained == pytest.approx(6 * matrices + scores)
    assert frozen == pytest.approx(4 * matrices + scores)
    lora = size_of(settings_of("lora"))
    assert lora.flops_per_token == pytest.approx(frozen + 6 * 207_093_760)


def test_memory_of_lora_of_llama3_70b_on_8_h100() -> None:
    """ZeRO-3 in bfloat16 with AdamW, a sequence of 4,096 tokens, full activation checkpointing; by hand."""
    recipe = {"activation_checkpoint": "full", "seq_len": 4096, "tokens_per_step": 64 * 4096}
    memory = cost(settings_of("lora"), job_of(LLAMA_70B, recipe, dp_shard=8, zero=3)).plan.memory
    layer = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    adapters = 16 * ((8192 + 8192) * 2 + (8192 + 1024) * 2 + (8192 + 28672) * 3)
    base = 80 * layer + 2 * 128256 * 8192
    assert memory["parameter"] == 2 * (base + 80 * adapters) // 8
    assert memory["gradient"] == 2 * 80 * adapters // 8
    assert memory["optimizer_state"] == 12 * 80 * adapters // 8
    assert memory["gathered"] == 2 * 2 * layer + 2 * adapters
    kept = 4 * 8192 + (2 * 8192 + 2 * 1024) + 2 * 64 + 3 * 28672 + 7 * 16  # values of a token in the recomputed layer
    assert memory["activation"] == 2 * 4096 * (80 * 8192 + kept)
    assert memory["logits"] == 4096 * 128256 * (2 + 4)  # no gradient of the head


def test_qlora_keeps_matrices_of_layers_in_nf4() -> None:
    assert pytest.approx(4 / 8 + (8 / 64 + 32 / (64 * 256)) / 8, rel=1e-3) == NF4_BYTES
    job = job_of(LLAMA_70B, dp_replicate=8)
    lora, qlora = (cost(settings_of(method), job).plan.memory for method in ("lora", "qlora"))
    matrices = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    assert lora["parameter"] - qlora["parameter"] == pytest.approx(matrices * (2 - NF4_BYTES))
    assert qlora["gathered"] == 2 * 8192 * 28672  # one dequantised matrix
    sharded = job_of(LLAMA_70B, dp_shard=8, zero=3)
    lora_step, qlora_step = (accounts(cost(settings_of(method), sharded)) for method in ("lora", "qlora"))
    gather = next(label for label in lora_step if "all-gather" in label)
    assert qlora_step[gather] < 0.35 * lora_step[gather]


def test_qlora_takes_the_time_to_dequantise() -> None:
    """Each matrix is dequantised in the forward pass, its recomputation and the backward pass; nothing is gathered."""
    job = job_of(LLAMA_8B, {"activation_checkpoint": "full"}, dp_replicate=8)
    lora, qlora = (cost(settings_of(method), job) for method in ("lora", "qlora"))
    matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    least_ns = 16 * 3 * matrices * (NF4_BYTES + 2) / machine.load("h100").device.bandwidth.value * 1e9
    assert least_ns < wall(qlora) - wall(lora) < 3 * least_ns


def test_only_gradients_of_adapters_are_reduced() -> None:
    sft, lora = (accounts(cost(settings_of(method), job_of(LLAMA_8B, dp_replicate=64))) for method in ("sft", "lora"))
    reduced = next(label for label in sft if "all-reduce" in label)
    assert 0 < lora[reduced] < 0.1 * sft[reduced]


def test_zero_3_gathers_frozen_weights() -> None:
    sft, lora = (
        accounts(cost(settings_of(method), job_of(LLAMA_8B, dp_shard=64, zero=3))) for method in ("sft", "lora")
    )
    scattered = next((label for label in sft if "reduce-scatter" in label), "")
    gathered = next(label for label in lora if "all-gather" in label)
    assert lora[gathered] > 0
    assert lora.get(scattered, 0) < 0.2 * sft[scattered]


def test_inputs_of_matrices_without_adapters_are_not_kept() -> None:
    job = job_of(LLAMA_8B)
    kept = {
        targets: cost(settings_of("lora", targets=targets), job).plan.memory["activation"]
        for targets in ("all", "attention", "mlp")
    }
    inputs = 2 * SEQ_LEN * 32  # bytes for each channel
    attention_only = kept["all"] - kept["attention"]
    assert attention_only == inputs * (4096 + 14336 + 3 * 16)  # the MLP's input, that of its last matrix, adapters
    assert kept["all"] - kept["mlp"] == inputs * (4096 + 4 * 16)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(machine.known())), RANKS, TARGETS, st.sampled_from(["lora", "qlora"]),
    st.sampled_from(["deepspeed", "megatron"]), st.sampled_from([512, 8192]),
)  # fmt: skip
def test_mfu_is_at_most_100_percent(
    name: str, rank: int, targets: Targets, method: Method, framework: str, seq_len: int
) -> None:
    assume(framework == "deepspeed" or method == "lora")
    recipe = {"seq_len": seq_len, "tokens_per_step": 64 * seq_len, "micro_batch_size": 8}
    assume("bfloat16" in machine.load(name).device.peak)
    choice = cost(settings_of(method, rank, targets), job_of(LLAMA_70B, recipe), framework, name)
    assert 0 < choice.bill.mfu <= 1


def test_a_checkpoint_holds_the_adapters_only() -> None:
    wanted = PlannerInput(LLAMA_8B, 8, 8, 64, SEQ_LEN)
    keeps = fine_tuned("deepspeed", settings_of("lora")).keeps
    space = layout_space.space(wanted)
    case = layout_space.as_cases(wanted, space, keeps).take(np.array([0]))
    assert checkpoint_bytes(case) == 41_943_040 * (2 + 12)


def test_tp_divides_the_rank_of_megatron_adapters() -> None:
    wanted = PlannerInput(LLAMA_8B, 8, 8, 64, SEQ_LEN)
    for rank, most in ((4, 4), (16, 8)):
        layouts = fine_tuned("megatron", settings_of("lora", rank)).layouts(wanted)
        assert layouts.columns["tp"].max() == most
    peft = fine_tuned("deepspeed", settings_of("lora")).layouts(wanted).columns
    assert peft["tp"].max() == peft["pp"].max() == 1


@pytest.mark.parametrize(
    ("tuning", "framework", "calibrated"),
    [
        (settings_of("lora", targets="attention"), "megatron", True),
        (settings_of("lora"), "megatron", False),
        (settings_of("lora", targets="attention"), "deepspeed", False),
        (settings_of("qlora", targets="attention"), "deepspeed", False),
        (settings_of("sft"), "megatron", True),
    ],
)
def test_intervals_are_calibrated_for_adapters_like_the_fitted_ones(
    tuning: FineTuning, framework: str, calibrated: bool
) -> None:
    recipe = {"seq_len": 4096, "tokens_per_step": 32 * 4096, "schedule": "1f1b"}
    choice = cost(tuning, job_of(LLAMA_70B, recipe, tp=2, pp=4), framework)
    assert choice.plan.calibrated == calibrated


def test_columns_of_all_trained_weights_are_unchanged() -> None:
    for tuning in (None, settings_of("sft")):
        assert fine_tuned("megatron", tuning).keeps.columns == {}
    plain = cases.of_jobs([job_of(LLAMA_8B)])
    assert not any(float(getattr(plain, name)[0]) for name in settings_of("lora").columns(split=True))
