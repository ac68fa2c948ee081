"""Configurations of other frameworks: a written job is read back as the same job, and users' files are read as is."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.predict.test_plan import DENSE, EXPERTS, GPT, H100, LATENT
from tests.refused import code_of, missing_values, refused
from trainyard import job_file as jobs
from trainyard import machine
from trainyard.cli.main import answer
from trainyard.errors import BadFile, BadInput
from trainyard.job import Job
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.configs import detect_format, uneven_stages
from trainyard.predict.configs.config_keys import CommandArguments, FrameworkConfig
from trainyard.predict.configs.deepspeed.deepspeed_keys import BATCHES
from trainyard.predict.configs.megatron import megatron_stages
from trainyard.predict.configs.torchtitan import flavors
from trainyard.predict.inputs import layout_space, machine_model
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.pipeline import partition, step_bounds
from trainyard.predict.search import stage_placement
from trainyard.predict.search.layout_cost import cost_job, make_cases
from trainyard.predict.search.search import search

OTHERS = [name for name in FRAMEWORKS if name != "trainyard"]
MODELS = {
    "dense": DENSE, "experts": EXPERTS, "gpt": GPT,
    "uneven": replace(DENSE, layers=5, qk_norm=True), "ends": replace(DENSE, layers=14, bias="qkv"),
    "latent": replace(LATENT, n_group=4, topk_group=2, router="sigmoid", load_balancing="bias", route_scale=2.5),
}  # fmt: skip


def read(text: str | bytes, where: str = "theirs", **arguments: Any) -> FrameworkConfig:
    return detect_format.read(text.encode() if isinstance(text, str) else text, where, CommandArguments(**arguments))


# Round trips


@cache
def offered_jobs(framework: str, name: str, dtype: str, devices: int = 8) -> list[Job]:
    """All layouts that the search may offer, whether they fit or not, with and without offloading."""
    wanted = PlannerInput(MODELS[name], devices, 4, 24, 256, dtype)
    layouts = FRAMEWORKS[framework].layouts(wanted)
    layouts = layouts.concat(layouts.keep(FRAMEWORKS[framework].offloads(wanted, layouts)).offloaded())
    keeps = FRAMEWORKS[framework].keeps
    return [layout_space.job_of(wanted, layouts.row(index), keeps) for index in range(len(layouts))]


def round_trip(framework: str, job: Job) -> FrameworkConfig:
    """Writes and reads a job. Megatron's arguments contain the model; the other files do not."""
    model = None if framework == "megatron" else job.model
    devices = None if framework == "torchtitan" else job.layout.ranks
    seq_len = job.recipe.seq_len if framework == "deepspeed" else None
    return read(FRAMEWORKS[framework].write_config(job), devices=devices, seq_len=seq_len, model=model)


def assert_same_job(job: Job, framework: str, config: FrameworkConfig) -> None:
    assert config.framework == framework
    assert config.unknown == ()
    assert config.keeps is None, "as the framework does"
    assert replace(config.job, name="", model=replace(config.job.decoder, name="")) == replace(
        job, name="", model=replace(job.decoder, name="")
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("framework", OTHERS)
def test_offered_layouts_survive_a_round_trip(framework: str, name: str) -> None:
    jobs = offered_jobs(framework, name, "bfloat16")
    assert jobs
    for job in jobs:
        assert_same_job(job, framework, round_trip(framework, job))


@pytest.mark.parametrize("framework", OTHERS)
@given(st.data())
def test_round_trip_keeps_the_predicted_ledger_and_memory(framework: str, data: st.DataObject) -> None:
    """In all dtypes of the framework."""
    runner, name = FRAMEWORKS[framework], data.draw(st.sampled_from(list(MODELS)))
    dtype = data.draw(st.sampled_from([dtype for dtype in runner.dtypes if dtype != "float4"]))
    job = data.draw(st.sampled_from(offered_jobs(framework, name, dtype)))
    config = round_trip(framework, job)
    assert_same_job(job, framework, config)
    first = cost_job(job, H100, runner)
    second = cost_job(config.job, H100, runner)
    assert first.plan.ledger == second.plan.ledger
    assert first.plan.memory == second.plan.memory
    axes = {axis: getattr(job.layout, axis) for axis in layout_space.AXES if hasattr(job.layout, axis)}
    fixed = axes | {
        "micro_batch_size": job.recipe.micro_batch_size,
        "activation_checkpoint": ("none", "selective", "full").index(job.recipe.activation_checkpoint),
    }
    fixed |= {"offload": int(job.recipe.offload)}
    wanted = PlannerInput(MODELS[name], 8, 4, 24, 256, dtype, fixed)
    assert search(wanted, H100, runner).choices[0].plan.ledger == first.plan.ledger, "as in the search"


@settings(deadline=None)
@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
@given(st.data())
def test_placed_layers_survive_a_round_trip(framework: str, data: st.DataObject) -> None:
    """Layers fewer on the first and the last stage: the same stages, ledger and memory."""
    runner = FRAMEWORKS[framework]
    pipelines = [job for job in offered_jobs(framework, "ends", "bfloat16") if job.layout.pp > 1]
    job = data.draw(st.sampled_from(pipelines))
    placements = list(stage_placement.less_layers(job, runner))
    assume(placements)
    job = stage_placement.with_less_layers(job, data.draw(st.sampled_from(placements)))
    config = round_trip(framework, job)
    assert config.approximated == ()
    assert_same_job(job, framework, config)
    first, second = cost_job(job, H100, runner), cost_job(config.job, H100, runner)
    assert first.plan.ledger == second.plan.ledger
    assert first.plan.memory == second.plan.memory


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        ("--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 4", [6, 6, 6, 4]),
        ("--decoder-last-pipeline-num-layers 4", [6, 6, 6, 4]),  # 18 layers on the other three
        ("--decoder-first-pipeline-num-layers 4", [4, 6, 6, 6]),
        ("--account-for-loss-in-pipeline-split --num-layers 23", [6, 6, 6, 5]),
        ("--account-for-embedding-in-pipeline-split --num-layers 23", [5, 6, 6, 6]),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", [5, 6, 6, 5]),
        ("--pipeline-model-parallel-layout 'Et*6|t*6|t*6|t*4L'", [6, 6, 6, 4]),
        ("--pipeline-model-parallel-layout 'Et*5|t*7|t*6|t*4L'", [5, 7, 6, 4]),
        ("--pipeline-model-parallel-layout 'Et*7|t*5|t*5|t*5L'", None),  # more on the first stage: approximated
    ],
)  # fmt: skip
def test_megatron_arguments_place_layers(arguments: str, counts: list[int] | None) -> None:
    config = read(
        "--num-layers 22 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --micro-batch-size 1 "
        "--global-batch-size 8 --max-position-embeddings 512 --vocab-size 32000 --bf16 "
        f"--pipeline-model-parallel-size 4 {arguments}",
        devices=4,
    )
    approximated = any("predicted with layers divided evenly" in each for each in config.approximated)
    assert approximated == (counts is None)
    if counts is not None:
        known = machine_model.build(H100, FRAMEWORKS["megatron"].software, "bfloat16")
        case = make_cases([config.job], FRAMEWORKS["megatron"])
        (times,) = step_bounds.stage_times(case, step_bounds.parts(case, known.hardware, known.values))
        assert list(times.layer_counts) == counts


def test_megatron_refuses_ranks_with_uneven_rests() -> None:
    with pytest.raises(BadFile, match="the other 18 of 22 layers do not divide evenly over 4 ranks"):
        read(
            "--num-layers 22 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --micro-batch-size 1 "
            "--global-batch-size 10 --max-position-embeddings 512 --vocab-size 32000 "
            "--pipeline-model-parallel-size 5 --bf16 --decoder-last-pipeline-num-layers 4",
            devices=5,
        )


def test_torchtitan_modules_of_stages_place_layers() -> None:
    job = next(
        job
        for job in offered_jobs("torchtitan", "ends", "bfloat16")
        if job.layout.pp == 4 and job.layout.interleave == 1
    )
    counts = partition.layers_per_stage(job.decoder.layers, 4, 0, 2)
    text = uneven_stages.torchtitan(FRAMEWORKS["torchtitan"].write_config(job), counts)
    config = read(text, model=job.model)
    assert config.approximated == ()
    less = config.job.layout.end_less_layers
    assert less is not None
    assert partition.layers_per_stage(job.decoder.layers, 4, *less) == counts


@pytest.mark.parametrize("preset", [flavor.preset for flavor in flavors.FLAVORS])
def test_torchtitan_files_have_the_name_and_flavor(preset: str) -> None:
    model = msgspec.convert(presets.load(preset).model, Model)
    result = search(PlannerInput(model, 512, 8, 1024, 8192), H100, FRAMEWORKS["torchtitan"], most=3)
    for choice in result.choices:
        text = FRAMEWORKS["torchtitan"].write_config(choice.plan.job)
        assert tomllib.loads(text)["model"]["name"] in preset.replace("-", "_")
        assert_same_job(choice.plan.job, "torchtitan", read(text))


def test_unknown_torchtitan_model_is_reported_as_missing() -> None:
    text = FRAMEWORKS["torchtitan"].write_config(offered_jobs("torchtitan", "dense", "bfloat16")[0])
    assert "# Missing: [model] name and flavor." in text
    with refused(BadFile, "theirs", "name = 'llama3'", "flavor = 'debugmodel'", "llama3 8B"):
        read(text)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=64))
def test_megatron_stages_survive_a_round_trip(layers_per_stage: list[int]) -> None:
    assert megatron_stages.read(megatron_stages.write(layers_per_stage), sum(layers_per_stage), "x") == layers_per_stage


@given(st.integers(1, 200), st.integers(1, 64))
def test_default_megatron_stages_are_even(layers: int, stages: int) -> None:
    stages = min(stages, layers + 2)  # the embedding or the head may be alone in a stage
    layers_per_stage = megatron_stages.default_stages(layers, stages)
    assert sum(layers_per_stage) == layers
    full = [
        count + (layers % stages > 0) * ((stage == 0) + (stage == stages - 1))
        for stage, count in enumerate(layers_per_stage)
    ]
    assert max(full) - min(full) <= 1


def test_megatron_stages_of_the_documentation() -> None:
    assert megatron_stages.read("Ettt|(tt|)*3,t|L", 10, "x") == [3, 2, 2, 2, 1, 0]
    for layout, *values in (
        ("E" + "(t|)*999999" + "L", "'E(t|)*999999L'", f"{megatron_stages._LONGEST:,} characters"),
        ("Ettm|L", "'Ettm|L'"),
        ("Et|tL", "2 layers", "3"),
    ):
        with refused(BadFile, "x", "--pipeline-model-parallel-layout", *values):
            megatron_stages.read(layout, 3, "x")


# torchtitan's

OLD = """
[job]
description = "Llama 3 70B, half a year ago"
[model]
name = "llama3"
flavor = "70B"
converters = "float8"
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
batch_size = 8
seq_len = 8192
compile = true
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[float8]
enable_fsdp_float8_all_gather = true
"""
NEW = """
[model]
name = "deepseek_v3"
flavor = "671B"
converters = ["quantize.linear.float8", "quantize.grouped_mm.float8"]
hf_assets_path = "./assets/hf/DeepSeek-V3"
[training]
local_batch_size = 16
global_batch_size = 1024
seq_len = 4096
some_day = 7
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 32
pipeline_parallel_degree = 8
pipeline_parallel_schedule = "Interleaved1F1B"
expert_parallel_degree = 32
fsdp_reshard_after_forward = "default"
[activation_checkpoint]
mode = "full"
[compile]
enable = false
[quantize.linear.float8]
filter_fqns = ["output", "router.gate"]
"""


def test_torchtitan_file_with_old_key_names() -> None:
    config = read(OLD, devices=64)
    layout, recipe = config.job.layout, config.job.recipe
    assert (layout.dp_shard, layout.tp, layout.zero) == (8, 8, 3)
    assert layout.sequence_parallel
    assert layout.loss_parallel
    assert (recipe.micro_batch_size, recipe.tokens_per_step, recipe.dtype) == (8, 64 * 8192, "float8")
    assert (recipe.activation_checkpoint, recipe.activation_checkpoint_every, recipe.compile) == ("full", 2, True)
    assert config.job.decoder == msgspec.convert(presets.load("llama3-70b").model, Model)
    assert config.unknown == ()
    assert [reason.partition(" ")[0] for reason in config.approximated] == [
        "parallelism.enable_async_tensor_parallel", "training.compile",
    ]  # fmt: skip


def test_torchtitan_file_with_current_key_names() -> None:
    config = read(NEW)
    layout, recipe = config.job.layout, config.job.recipe
    assert (layout.dp_replicate, layout.dp_shard, layout.pp, layout.ep, layout.interleave) == (2, 32, 8, 32, 2)
    assert layout.zero == 2, "a pipeline keeps gathered weights by default"
    assert (recipe.micro_batch_size, config.job.accumulate, recipe.schedule) == (1, 16, "interleaved")
    assert config.unknown == ("training.some_day",)


@pytest.mark.parametrize(
    ("old", "new", "suggestion"),
    [
        ("tensor_parallel_degree", "tensor_paralel_degree", "parallelism.tensor_parallel_degree"),
        ("[activation_checkpoint]\nmode", "[activation_checkpoint]\nmod", "activation_checkpoint.mode"),
        ("local_batch_size", "local_batchsize", "training.local_batch_size"),
        ("[parallelism]", "[paralelism]\ntensor_parallel_degree = 8\n[parallelism]", "parallelism.tensor_parallel"),
    ],
)
def test_misspelt_torchtitan_key_is_refused(old: str, new: str, suggestion: str) -> None:
    text = NEW.replace("some_day = 7", "")
    if old == "tensor_parallel_degree":
        text = text.replace("[parallelism]", "[parallelism]\ntensor_parallel_degree = 1")
    assert old in text
    with pytest.raises(BadFile) as refused:
        read(text.replace(old, new), devices=512)
    assert "would have no effect" in refused.value.message
    assert f"Did you mean {suggestion}" in refused.value.next_step


def test_torchtitan_file_with_cpu_offload() -> None:
    change = ("seq_len = 8192", "seq_len = 8192\nenable_cpu_offload = true")
    config = read(OLD.replace(*change), devices=64)
    assert config.job.recipe.offload
    assert config.unknown == ()
    assert read(OLD.replace(change[0], change[1].replace("true", "false")), devices=64).job == read(OLD, devices=64).job


def test_masked_attention_of_a_flavor_is_reported() -> None:
    config = read(OLD.replace("70B", "8B_flex"), devices=8)
    assert config.job.decoder.name == "llama3-8b"
    assert any("FlexAttention" in reason for reason in config.approximated)


@pytest.mark.parametrize(
    ("section", "product"),
    [
        ("[experimental]\npipeline_parallel_degree = 4\npipeline_parallel_microbatches = 5", "8 % 5 micro-batches = 3"),
        ("[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 3", "8 % 3 samples"),
    ],
)
def test_torchtitan_micro_batch_error_has_the_divisor(section: str, product: str) -> None:
    text = f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 2048\n{section}\n'
    with refused(BadInput, product):
        read(text, devices=16)


@pytest.mark.parametrize(
    ("change", "kind", "values"),
    [
        (("671B", "16B"), BadFile, ["name = 'deepseek_v3'", "flavor = '16B'", "'deepseek_v3 671B'"]),
        (("shard_degree = 32", "shard_degree = 31"), BadInput,
         ["replicate 2 x tensor 1 x context 1 x pipeline 8 x shard 31 = 496", "--devices 512"]),
        (("shard_degree = 32", "shard_degree = '32'"), BadFile, ["parallelism.data_parallel_shard_degree = '32'"]),
        (("replicate_degree = 2", "replicate_degree = true"), BadFile,
         ["parallelism.data_parallel_replicate_degree = True"]),
        (("global_batch_size = 1024", "global_batch_size = 1000"), BadInput,
         ["global_batch_size 1000 % (training.local_batch_size 16 x 64"]),
        (("global_batch_size = 1024", "global_batch_size = 2048"), BadFile,
         ["training.global_batch_size = 2048", "local_batch_size = 32"]),
        (("pipeline_parallel_degree = 8", "pipeline_parallel_degree = 1"), BadInput,
         ["pipeline 1 x shard 32 = 64", "--devices 512"]),
        (("Interleaved1F1B", "ZBVZeroBubble"), BadFile, ["parallelism.pipeline_parallel_schedule = 'ZBVZeroBubble'"]),
        (("Interleaved1F1B", "2F2B"), BadFile, ["parallelism.pipeline_parallel_schedule = '2F2B'", "1F1B"]),
        (("seq_len = 4096", "seq_len = 4096\nenable_cpu_offload = true"), BadFile,
         ["training.enable_cpu_offload = True"]),
        (("seq_len = 4096", "batch_size = 4"), BadFile, ["training.batch_size = 4", "training.local_batch_size = 16"]),
        (('mode = "full"', 'mode = "memory_budget"'), BadFile, ["activation_checkpoint.mode = 'memory_budget'"]),
        (('mode = "full"', 'selective_ac_option = "x"'), BadFile, ["activation_checkpoint.selective_ac_option = 'x'"]),
        (("expert_parallel_degree = 32", "expert_parallel_degree = 3"), BadInput,
         ["256 experts % expert parallelism 3 = 1"]),
        (("expert_parallel_degree = 32", "pipeline_parallel_layers_per_stage = 9"), BadFile,
         ["61 layers", "7 stages", "pipeline_parallel_degree 8"]),
        (("[compile]", "[optimizer]\nname = 'Muon'\n[compile]"), BadFile, ["optimizer.name = 'Muon'"]),
        (("[compile]", "[fault_tolerance]\nenable = true\n[compile]"), BadFile, ["fault_tolerance.enable = True"]),
        (("linear.float8", "linear.int4"), BadFile, ["model.converters", "'quantize.linear.int4'"]),
        (('"quantize.linear.float8", ', ""), BadFile, ["model.converters = ['quantize.grouped_mm.float8']"]),
        (("[compile]", "[compile"), BadFile, ["TOML", "line 21"]),
    ],
)  # fmt: skip
def test_invalid_torchtitan_file_is_refused(change: tuple[str, str], kind: type[BadInput], values: list[str]) -> None:
    assert change[0] in NEW
    with refused(kind, "theirs", *values):
        read(NEW.replace(*change), devices=512)


def test_replication_without_sharding_is_refused_as_in_torchtitan() -> None:
    text = "[model]\nflavor='8B'\n[parallelism]\ndata_parallel_replicate_degree=4\ndata_parallel_shard_degree=1\n"
    assert read(text, devices=4).job.layout.dp_replicate == 4
    with refused(BadFile, "theirs", "data_parallel_replicate_degree = 4", "tensor_parallel_degree = 2"):
        read(text + "tensor_parallel_degree=2\n", devices=8)
    alone = read("[model]\nflavor='8B'\n[parallelism]\ntensor_parallel_degree=2\ndata_parallel_shard_degree=1\n")
    assert alone.job.recipe.dtype == "float32", "only FSDP computes in two bytes in torchtitan"
    assert "float32" in alone.approximated[0]


# DeepSpeed's

SPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto",
                          "offload_optimizer": {"device": "none"}},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "gradient_clipping": 1.0, "wall_clock_breakdown": False,
}  # fmt: skip


def speed(devices: int = 16, **keys: Any) -> FrameworkConfig:
    document = {key: value for key, value in (SPEED | keys).items() if value != "-"}
    return read(json.dumps(document), devices=devices, seq_len=256, model=MODELS["dense"])


def test_deepspeed_file() -> None:
    config = speed()
    layout, recipe = config.job.layout, config.job.recipe
    assert (layout.dp_shard, layout.zero, recipe.micro_batch_size, config.job.batch) == (16, 3, 2, 2 * 8 * 16)
    assert (recipe.dtype, recipe.activation_checkpoint, config.keeps, config.unknown, config.approximated) == (
        "bfloat16",
        "none",
        None,
        (),
        (),
    )
    more = {"new_thing": {"deep": 1}, "bf16_": 1, "use_data_before_expert_parallelism": True}
    variant = speed(**more, sequence_parallel_size=4, zero_optimization={"stage": 2})
    assert set(variant.unknown) == {"new_thing.deep", "bf16_", "use_data_before_expert_parallelism"}
    assert (variant.job.layout.cp, variant.job.layout.cp_method, variant.job.layout.dp_shard) == (4, "ulysses", 4)
    assert variant.approximated[0].startswith("no zero_optimization.overlap_comm: ")
    for keys in ({"offload_optimizer": {"device": "cpu", "pin_memory": True}}, {"cpu_offload": True}):
        offloaded = speed(zero_optimization={"stage": 2, "overlap_comm": True} | keys)
        assert (offloaded.job.recipe.offload, offloaded.unknown, offloaded.approximated) == (True, (), ())
    assert not speed().job.recipe.offload
    assert speed(zero_optimization=True).job.layout.zero == 1, "the format of old versions"
    assert speed(zero_optimization={"stage": 3, "mics_shard_size": 8}).job.layout.dp_replicate == 2
    assert speed(tensor_parallel={"autotp_size": 4}).job.layout.tp == 4
    staged = speed(zero_optimization={"stage": 1}, pipeline={"stages": 4, "activation_checkpoint_interval": 1})
    assert (staged.job.layout.pp, staged.job.recipe.activation_checkpoint, staged.job.recipe.schedule) == (
        4,
        "full",
        "1f1b",
    )
    assert speed(activation_checkpointing={"partition_activations": False}).job.recipe.activation_checkpoint == "full"


def test_deepspeed_bytes_of_weights_and_state() -> None:
    assert speed(bf16="-").keeps is None
    assert speed(bf16="-").job.recipe.dtype == "float32"
    assert speed(bf16="-", fp16={"enabled": True}).job.recipe.dtype == "float16"
    assert speed(data_types={"grad_accum_dtype": "fp32"}).keeps == (2, 4, 12)
    assert speed(bf16={"enabled": True, "bf16_master_weights_and_grads": True}).keeps == (2, 2, 10)
    assert speed(bf16="-", torch_autocast={"enabled": True, "dtype": "torch.bfloat16"}).keeps == (4, 4, 8)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_two_deepspeed_batch_sizes_give_the_third(micro_batch_size: int, accumulation: int, dp: int) -> None:
    """DeepSpeed's own rule; one size alone means no accumulation."""
    sizes = dict(zip(BATCHES, (micro_batch_size * accumulation * dp, micro_batch_size, accumulation), strict=True))
    for left_out in (*sizes, ""):
        config = speed(dp, **{key: "-" if key == left_out else value for key, value in sizes.items()})
        assert (config.job.recipe.micro_batch_size, config.job.accumulate, config.job.batch) == (
            micro_batch_size,
            accumulation,
            micro_batch_size * accumulation * dp,
        )
    batch_key, microbatch_key, accumulation_key = sizes
    batch, unset = micro_batch_size * accumulation * dp, {accumulation_key: "-"}
    assert (
        speed(dp, **unset | {batch_key: micro_batch_size * dp, microbatch_key: "-"}).job.recipe.micro_batch_size
        == micro_batch_size
    )
    assert speed(dp, **unset | {batch_key: "-", microbatch_key: micro_batch_size}).job.batch == micro_batch_size * dp
    assert speed(dp, **sizes | {batch_key: "auto"}).job.batch == batch, "it is determined by the others"
    with refused(BadInput, "theirs", f"{batch_key} {batch + 1}", f"{batch}"):
        speed(dp, **sizes | {batch_key: batch + 1})


@pytest.mark.parametrize(
    ("keys", "kind", "values"),
    [
        ({"train_micro_batch_size_per_gpu": "auto"}, BadFile,
         ["train_micro_batch_size_per_gpu = 'auto'", "per_device_train_batch_size"]),
        ({"gradient_accumulation_steps": "auto"}, BadFile, ["gradient_accumulation_steps = 'auto'"]),
        ({"bf16": {"enabled": "auto"}}, BadFile, ["bf16.enabled = 'auto'"]),
        ({"zero_optimization": {"stage": "auto"}}, BadFile, ["zero_optimization.stage = 'auto'", "0, 1, 2 or 3"]),
        ({"zero_optimization": {"stage": 4}}, BadFile, ["zero_optimization.stage = 4", "0 to 3"]),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, BadFile,
         ["zero_optimization.offload_param.device = 'cpu'"]),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}, BadFile,
         ["zero_optimization.offload_optimizer.device = 'nvme'"]),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "disk"}}}, BadFile,
         ["zero_optimization.offload_optimizer.device = 'disk'", "none, cpu, nvme"]),
        ({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, BadFile,
         ["zero_optimization.offload_optimizer.device = 'cpu'", "zero_optimization.stage"]),
        ({"zero_optimization": {"stage": 1, "cpu_offload": True}, "pipeline": {"stages": 2}}, BadFile,
         ["zero_optimization.cpu_offload = True"]),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}}, BadFile,
         ["zero_optimization.offload_optimizer.ratio = 0.3"]),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, BadFile,
         ["zero_optimization.zero_hpz_partition_size = 8"]),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, BadFile,
         ["zero_optimization.zero_quantized_weights = True"]),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 5}}, BadInput, ["16 ranks", "mics_shard_size 5 = 1"]),
        ({"zero_optimization": {"stage": 2}, "pipeline": {"stages": 2}}, BadFile,
         ["zero_optimization.stage = 2", "pipeline.stages = 2"]),
        ({"sequence_parallel_size": 3}, BadInput, ["16 devices % (tensor 1 x pipeline 1 x sequence 3) = 1"]),
        ({"tensor_parallel": {"autotp_size": 3}}, BadInput, ["heads % tensor parallelism 3 ="]),
        ({"tensor_parallel": {"autotp_size": 8}}, BadInput,
         ["4 key/value heads % tensor parallelism 8 = 4", "1, 2, 4"]),
        ({"train_batch_size": 100}, BadInput,
         ["train_batch_size 100", "micro-batch 2 x accumulation 8 x 16 ranks", 256]),
        ({"train_batch_size": 100, "gradient_accumulation_steps": "-"}, BadInput,
         ["train_batch_size 100 % (train_micro_batch_size_per_gpu 2 x 16 ranks of data parallelism) = 4", 32]),
        ({"train_batch_size": 8, "gradient_accumulation_steps": "-"}, BadInput, ["train_batch_size 8", "= 8", 32]),
        ({"train_batch_size": 100, "train_micro_batch_size_per_gpu": "-"}, BadInput,
         ["gradient_accumulation_steps 8 x 16 ranks", "= 100", 128]),
        ({"bf16": "-", "bf61": {"enabled": True}}, BadFile, ["bf61", "'bf16'"]),
        ({"zero_optimization": "-", "zero_optimisation": {"stage": 3}}, BadFile, ["'zero_optimization'"]),
        ({"train_micro_batch_size_per_gpu": 1.5}, BadFile, ["train_micro_batch_size_per_gpu = 1.5"]),
        ({"train_micro_batch_size_per_gpu": "-", "gradient_accumulation_steps": "-"}, BadFile,
         ["train_batch_size", "train_micro_batch_size_per_gpu"]),
        ({"fp16": {"enabled": True}}, BadFile, ["bf16.enabled", "fp16.enabled", "true"]),
        ({"optimizer": {"type": "OneBitAdam"}}, BadFile, ["optimizer.type = 'OneBitAdam'"]),
        ({"curriculum_learning": {"enabled": True}, "amp": {"enabled": True}}, BadFile,
         ["amp.enabled = True", "curriculum_learning.enabled = True"]),
        ({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}}}, BadFile,
         ["compression_training.weight_quantization.shared_parameters.enabled = True"]),
    ],
)  # fmt: skip
def test_invalid_deepspeed_file_is_refused(keys: dict[str, Any], kind: type[BadInput], values: list[object]) -> None:
    with refused(kind, "theirs", *values):
        speed(**keys)


@pytest.mark.parametrize("key", [*BATCHES, "zero_optimization"])
def test_deepspeed_file_with_a_syntax_error_is_recognised(key: str) -> None:
    assert detect_format.detect(b'{"%s": {"stage": 3},}' % key.encode()) == "deepspeed"
    assert detect_format.detect(b'{"hidden_size": 8,}') is None


def test_duplicate_key_is_refused_as_in_deepspeed() -> None:
    with refused(BadFile, "theirs", "JSON", "'train_batch_size'"):
        read('{"train_batch_size": 1, "train_batch_size": 2}', devices=1, seq_len=1, model=DENSE)


# Megatron's

ARGUMENTS = """
torchrun --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu --bf16 \\
  --group-query-attention --num-query-groups 8 --seq-length=8192 --vocab-size 128256 \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 128 \\
  --use-distributed-optimizer --sequence-parallel --untie-embeddings-and-output-weights --normalization RMSNorm \\
  --position-embedding-type rope --lr 3e-4 --some-new-thing 7  # theirs
"""
"""Arguments of a user's run."""


@pytest.mark.parametrize(
    ("change", "devices", "kind", "values"),
    [
        (("--num-layers 32", ""), 64, BadFile, ["--num-layers"]),
        (("--num-layers 32", "--num-layers many"), 64, BadFile, ["--num-layers many"]),
        (("--num-layers 32", "--num-layers 33"), 64, BadFile, ["33 layers % --pipeline-model-parallel-size 2 = 1"]),
        (("--bf16", "--bf16"), 60, BadInput, ["60 devices % (tensor 4 x pipeline 2 x context 1) = 4"]),
        (("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 3"), 64, BadInput,
         ["32 heads % tensor parallelism 3 = 2", "1, 2, 4, 8, 16, 32"]),
        (("--bf16", "--bf16 --expert-model-parallel-size 4"), 64, BadFile,
         ["--expert-model-parallel-size 4", "--num-experts"]),
        (("--bf16", "--bf16"), None, BadInput, ["--devices"]),
        (("--global-batch-size 128", "--global-batch-size 100"), 64, BadInput, ["--global-batch-size 100 % (8 ranks"]),
        (("--bf16", "--bf16 --recompute-granularity some"), 64, BadFile, ["--recompute-granularity some"]),
        (("--bf16", "--bf16 --mtp-num-layers 1"), 64, BadFile, ["--mtp-num-layers 1"]),
        (("--bf16", "--bf16 --optimizer sgd --window-size 128"), 64, BadFile, ["--optimizer sgd", "--window-size 128"]),
        (("--bf16", "--bf16 --cpu-offloading-num-layers 4"), 64, BadFile, ["--cpu-offloading-num-layers 4"]),
        (("--bf16", "--bf16 --optimizer-cpu-offload"), 64, BadFile,
         ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]),
        (("--bf16", "--optimizer-cpu-offload --use-precision-aware-optimizer --optimizer-offload-fraction 0.5"), 64,
         BadFile, ["--optimizer-offload-fraction 0.5"]),
        (("--bf16", "--bf16 --attention-backend unfused"), 64, BadFile, ["--attention-backend unfused"]),
        (("--bf16", "--bf16 --num-experts 8 --expert-model-parallel-size 8"), 64, BadFile,
         ["4 ranks of tensor", "8 of expert", "--expert-tensor-parallel-size 1"]),
        (("--bf16", "--bf16 --num-experts 8 --moe-layer-freq ([1]*3+[0]*1)*8"), 64, BadFile,
         ["--moe-layer-freq ([1]*3+[0]*1)*8", "32 layers"]),
        (("--bf16", "--bf16 --pipeline-model-parallel-layout Et*31|L"), 64, BadFile,
         ["--pipeline-model-parallel-layout", "31 layers", 32]),
        (("--bf16", "--bf16 --pipeline-model-parallel-layout Et*30|t|tL"), 64, BadFile,
         ["--pipeline-model-parallel-layout", "3 stages % 2 ranks = 1"]),
        (("--use-distributed-optimizer", "--context-parallel-size 2"), 64, BadFile,
         ["--context-parallel-size 2", "--use-distributed-optimizer"]),
        (("--bf16", "--bf16 --num-distributed-optimizer-instances 3"), 64, BadInput,
         ["8 ranks", "--num-distributed-optimizer-instances 3 = 2"]),
        (("--bf16", "--recompute-granularity full --recompute-method block --recompute-num-layers 5"), 64, BadFile,
         ["--recompute-num-layers 5", "5 of 16 layers"]),
        (("--num-query-groups 8", "--num-query-groups 2"), 64, BadInput,
         ["2 key/value heads % tensor parallelism 4 = 2"]),
        (("--bf16", "--bf16 --fp16"), 64, BadFile, ["--bf16", "--fp16"]),
        (("--bf16", "--bf16 --max-position-embeddings 1024"), 64, BadFile, ["--max-position-embeddings 1024"]),
        (("--bf16", "--recompute-granularity full"), 64, BadFile, ["--recompute-method"]),
        (("--bf16", "--recompute-granularity selective --recompute-modules layernrom"), 64, BadFile, ["layernrom"]),
        (("--bf16", "--overlap-moe-expert-parallel-comm"), 64, BadFile, ["--overlap-moe-expert-parallel-comm"]),
        (("--bf16", "--bf16 --num-experts 8 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 "
          "--overlap-moe-expert-parallel-comm"), 64, BadFile, ["--overlap-moe-expert-parallel-comm"]),
        (("--bf16", "'"), 64, BadFile, ["quotation"]),
    ],
)  # fmt: skip
def test_invalid_megatron_arguments_are_refused(
    change: tuple[str, str], devices: int | None, kind: type[BadInput], values: list[object]
) -> None:
    assert change[0] in ARGUMENTS
    with refused(kind, "theirs", *values):
        read(ARGUMENTS.replace(*change), devices=devices)


def with_arguments(more: str) -> FrameworkConfig:
    return read(ARGUMENTS.replace("--bf16", more), devices=64)


@pytest.mark.parametrize("processes", ["--nproc-per-node 8", "--nproc_per_node=8"])
def test_the_device_count_is_that_of_torchrun_unless_it_is_given(processes: str) -> None:
    launched = f"torchrun --nnodes 8 {processes} pretrain_gpt.py {ARGUMENTS}"
    alone, same, fewer = (read(launched, devices=devices) for devices in (None, 64, 32))
    assert alone.job.layout == same.job.layout == read(ARGUMENTS, devices=64).job.layout
    assert fewer.job.layout == read(ARGUMENTS, devices=32).job.layout
    assert len(alone.approximated) == len(same.approximated) == len(fewer.approximated) - 1


def test_megatron_arguments_that_replace_others_are_listed() -> None:
    config = with_arguments("--bf16 --recompute-granularity full --recompute-activations --micro-batch-size 2")
    assert config.job.recipe.activation_checkpoint == "selective"
    assert config.job.recipe.micro_batch_size == 1  # the last one
    replaced = {line.split()[0] for line in config.approximated}
    assert {"--recompute-granularity", "--micro-batch-size"} <= replaced
    assert "--bf16" not in {line.split()[0] for line in with_arguments("--bf16 --bf16").approximated}


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        ("", ()),
        ("--recompute-modules layernorm", ()),
        ("--recompute-activations", ("core_attn",)),
        ("--recompute-granularity selective --recompute-modules layernorm mlp", ("layernorm", "mlp")),
    ],
)
def test_megatron_arguments_name_recomputed_modules(arguments: str, modules: tuple[str, ...]) -> None:
    assert with_arguments(f"--bf16 {arguments}").job.recipe.recompute_modules == modules


@pytest.mark.parametrize(
    ("argument", "suggestion"),
    [
        ("--tensor-parallel-size 4", ""),
        ("--sequence-paralel", ""),
        ("--context-paralel-size 2", "--context-parallel-size"),
        ("--recompute-granularty full", "--recompute-granularity"),
        ("--decoder-seq-length 128", ""),
    ],
)
def test_misspelt_megatron_argument_is_refused(argument: str, suggestion: str) -> None:
    if suggestion:
        with refused(BadFile, argument.split()[0], "would have no effect", f"Did you mean {suggestion}?"):
            with_arguments(argument)
    else:
        assert argument.split()[0] in with_arguments(argument).unknown, "the file has the argument that it resembles"


def test_misspelt_deepspeed_key_of_a_table_is_refused() -> None:
    text = '{"train_batch_size": 8, "zero_optimization": {"stge": 3}}'
    with refused(BadFile, "zero_optimization.stge", "Did you mean zero_optimization.stage?"):
        read(text, devices=8, seq_len=64, model=DENSE)


def test_megatron_arguments_set_the_step() -> None:
    config = with_arguments("--bf16")
    assert config.unknown == ("--some-new-thing",)
    assert config.approximated == ()
    assert (config.job.layout.dp_shard, config.job.decoder.ffn_hidden_size, config.job.recipe.seq_len) == (
        8,
        14336,
        8192,
    )
    assert config.job.decoder.bias == "all", "by default"
    assert with_arguments("").job.recipe.dtype == "float32"
    assert with_arguments("--bf16 --fp8-hybrid").job.recipe.dtype == "float8"
    assert with_arguments("--bf16 --grad-reduce-in-bf16").keeps == (2, 2, 12)
    aware = "--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8"
    assert with_arguments(aware).keeps == (2, 4, 7)
    block = with_arguments("--bf16 --recompute-granularity full --recompute-method block --recompute-num-layers 8")
    assert (block.job.recipe.activation_checkpoint, block.job.recipe.activation_checkpoint_every) == ("full", 2)
    fsdp = with_arguments("--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params")
    assert fsdp.job.layout.zero == 3
    assert with_arguments("--bf16 --tp-comm-overlap").approximated == (
        "--tp-comm-overlap: predicted without overlap of tensor-parallel communication",
    )
    offloaded = with_arguments("--bf16 --use-precision-aware-optimizer --optimizer-cpu-offload")
    assert (offloaded.job.recipe.offload, offloaded.keeps) == (True, None)
    assert offloaded.approximated[0].startswith("no --overlap-cpu-optimizer-d2h-h2d: predicted with copies")
    no_vocab = read(ARGUMENTS.replace("--vocab-size 128256", ""), devices=64)
    assert no_vocab.approximated == ("no --vocab-size: predicted with a vocabulary of 50,304 tokens",)


# The command


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    job = jobs.write(offered_jobs("trainyard", "dense", "bfloat16")[0])
    texts = {
        "run.args": ARGUMENTS,
        "titan.toml": OLD,
        "ds.json": json.dumps(SPEED),
        "job.toml": job,
        "config.json": "{}",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


H = ("--machine", "h100")


@pytest.mark.parametrize(
    ("arguments", "framework"),
    [
        (("run.args", "--devices", "64"), "megatron"),
        (("titan.toml", "--devices", "64"), "torchtitan"),
        (("titan.toml", "--model", "llama3-8b", "--devices", "64"), "torchtitan"),
        (("ds.json", "--model", "llama3-8b", "--devices", "64", "--seq-len", "8192"), "deepspeed"),
        (("ds.json", "--model", "job.toml", "--devices", "8"), "deepspeed"),
    ],
)  # fmt: skip
def test_framework_configuration_is_checked_as_is(
    arguments: tuple[str, ...], framework: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", "check", *(files.get(word, word) for word in arguments), *H, "--json"]) == 0
    printed = capsys.readouterr()
    output = json.loads(printed.out)
    data = Path(files[arguments[0]]).read_bytes()
    job = msgspec.convert(output["choices"][0]["plan"]["job"], Job)
    model = job.model if "--model" in arguments else None
    seq_len = job.recipe.seq_len if framework == "deepspeed" else None
    expected = detect_format.read(data, "x", CommandArguments(job.layout.ranks, seq_len, model))
    assert expected.framework == framework
    assert replace(job, name="", model=None) == replace(expected.job, name="", model=None)
    assert output.get("unknown_settings", []) == list(expected.unknown)
    assert output.get("differing_settings", []) == list(expected.approximated)
    for message in (*expected.unknown, *expected.approximated):
        assert message in printed.err
    assert "exact_bytes" not in output, "no code of another framework runs"
    others = [msgspec.convert(choice["plan"]["job"], Job) for choice in output["choices"][1:]]
    assert all(other.batch == job.batch and other.layout.ranks == job.layout.ranks for other in others)


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        (("ds.json", *H), "bad-input", ["ds.json", "--model MODEL", "plan check"]),
        ((*H,), "bad-input", ["No model", "trainyard plan list"]),
        (("check", "ds.json", *H), "bad-input", ["ds.json", "--model MODEL --devices N --seq-len N"]),
        (("check", "ds.json", "--model", "llama3-8b", *H), "bad-input", ["ds.json", "Add --devices N --seq-len N"]),
        (("check", "ds.json", "--model", "llama3-8b", "--devices", "8", *H), "bad-input", ["Add --seq-len N"]),
        (("check", "titan.toml", *H), "bad-input",
         ["titan.toml", "parallelism.data_parallel_shard_degree", "--devices"]),
        (("check", "titan.toml", "--devices", "64", "--batch", "3", *H), "bad-input", ["--batch 3", "titan.toml", 64]),
        (("check", "job.toml", "--devices", "64", *H), "bad-input", ["--devices 64", "job.toml", 8]),
        (("check", "nowhere", "--model", "llama3-8b", *H), "missing-file", ["nowhere"]),
        (("check", "llama3-8b", *H), "bad-input", ["llama3-8b", "trainyard plan llama3-8b"]),
        (("check", "run.args", "--machine", "h100:8,a100:16"), "bad-input", ["--machine h100:8,a100:16"]),
        (("check", "config.json", "--model", "llama3-8b", *H), "bad-file",
         ["config.json", "TOML", "JSON", "Megatron's"]),
        (("check", *H), "bad-usage", ["FILE"]),
        (("titan.toml", "--check", *H), "bad-usage", ["trainyard plan check FILE"]),
    ],
)  # fmt: skip
def test_unusable_check_is_reported(
    arguments: tuple[str, ...],
    code: str,
    values: list[object],
    files: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert answer(["plan", *(files.get(word, word) for word in arguments)]) == 2
    failure = capsys.readouterr().err
    assert code_of(failure) == code
    assert missing_values(failure, *values) == []


def test_configuration_is_shown_if_no_layout_fits(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the configuration nor any other layout fits."""
    path = Path(files["titan.toml"])
    path.write_text(OLD.replace("70B", "405B"))
    assert answer(["plan", "check", str(path), "--devices", "8", *H]) == 0
    printed = capsys.readouterr()
    assert "No other layout: llama3-405b fits on 8 devices in none of" in printed.err
    assert "It does not fit" in printed.err
    assert "full, 1 in 2" in printed.out
    assert answer(["plan", "check", str(path), "--devices", "8", *H, "--out", str(path.with_name("x"))]) == 2


def test_escape_codes_of_a_file_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(SPEED | {"\x1b[2J": 1}))
    assert answer(["plan", "check", str(path), "--model", "tiny", "--devices", "2", "--seq-len", "128", *H]) == 0
    printed = capsys.readouterr()
    assert "[2J" in printed.err
    assert "\x1b" not in printed.err + printed.out


def test_devices_are_converted_to_ranks(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    machine_name = next(name for name in machine.known() if machine.load(name).device.ranks > 1)
    ranks = machine.load(machine_name).device.ranks
    arguments = ("--model", "tiny", "--devices", "2", "--seq-len", "128", "--machine", machine_name)
    assert answer(["plan", "check", files["ds.json"], *arguments, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["devices"] == 2
    assert output["choices"][0]["plan"]["job"]["layout"]["dp_shard"] == 2 * ranks
