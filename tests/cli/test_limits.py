"""Absurd sizes from every kind of input end in a clear error, before anything is enumerated."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.predict.configs.test_configs import ARGUMENTS, NEW, SPEED
from tests.refused import missing_values
from trainyard import job_file, limits, machine
from trainyard.cli.main import answer
from trainyard.errors import BadInput, BadJob
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.economics import failures
from trainyard.predict.economics.failures import goodput
from trainyard.predict.inputs import layout_space
from trainyard.predict.pipeline import schedules, simulation
from trainyard.predict.pipeline.simulation import PipelineTimes
from trainyard.predict.search.best_first import MAX_SIMULATED_OPERATIONS
from trainyard.recipe import Recipe
from trainyard.train.diffusion.diffusion_sizes import Dit
from trainyard.train.vision.vision_sizes import Vit

HUGE = 2_147_483_648
CLUSTER = ("--machine", "h100", "--devices", "64", "--batch", "512", "--seq-len", "2048")
SMALL = {"layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "heads": 4, "kv_heads": 2, "head_dim": 16}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 256,
}  # fmt: skip


def refused(*arguments: str) -> bool:
    """Whether the command ends as bad input, and with little memory."""
    tracemalloc.start()
    try:
        code = answer(["plan", *arguments])
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()
    return code == BadInput.exit_code


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


@pytest.mark.parametrize("layers", [HUGE, 2**63, 10**400, -(10**30)])
def test_a_model_with_absurd_layers_is_refused(layers: int, tmp_path: Path) -> None:
    text = presets.known()["llama3-8b"].read_text("utf-8").replace("layers = 32", f"layers = {layers}")
    assert refused(written(tmp_path, "m.toml", text), *CLUSTER)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_hidden_layers": HUGE},
        {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": HUGE, "layer_types": ["full_attention"]},
        {"architectures": ["BambaForCausalLM"], "num_hidden_layers": HUGE},
        {"architectures": ["JambaForCausalLM"], "num_hidden_layers": HUGE},
        {"architectures": ["GPT2LMHeadModel"], "n_layer": HUGE, "n_embd": 64, "n_head": 4},
        {"hidden_size": 2**31, "head_dim": 2**31},
    ],
)
def test_an_absurd_config_json_is_refused(changed: dict[str, object], tmp_path: Path) -> None:
    assert refused(written(tmp_path, "config.json", json.dumps(LLAMA | changed)), *CLUSTER)


def test_an_absurd_job_file_is_refused(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "examples" / "tiny.toml").read_text("utf-8")
    for old, new in (
        ("seq_len = ", f"seq_len = {HUGE}000 #"), ("tokens_per_step = ", f"tokens_per_step = {2**70} #"),
        ("[recipe]", f"[recipe]\nnum_workers = {HUGE}"), ("[recipe]", f"[recipe]\nmicro_batch_size = 0x{'f' * 6000}"),
        ("[recipe]", f"[recipe]\nmicro_batch_size = {'9' * 6000}"),
    ):  # fmt: skip
        assert old in text
        assert refused(written(tmp_path, "job.toml", text.replace(old, new, 1)), *CLUSTER[:4]), new[:60]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("megatron.args", f"{ARGUMENTS} --num-layers {HUGE}"),
        ("megatron.args", f"{ARGUMENTS} --num-layers 99999999"),
        ("titan.toml", NEW.replace("[parallelism]", "[parallelism]\nexpert_parallel_degree = 999999999")),
        ("speed.json", json.dumps(SPEED | {"train_batch_size": 10**30})),
    ],
)
def test_an_absurd_configuration_of_another_framework_is_refused(name: str, text: str, tmp_path: Path) -> None:
    assert refused("check", written(tmp_path, name, text), "--model", "llama3-8b", *CLUSTER)


@pytest.mark.parametrize(
    "arguments",
    [
        *((flag, str(number)) for flag in ("--devices", "--batch", "--seq-len") for number in (2**53, 10**30, 10**400)),
        ("--tokens", "1e308"), ("--tokens", "1e19"), ("--tokens", "nan"), ("--tokens", "-1"),
        *(("--fix", f"{axis}=0")
          for axis in ("tp", "pp", "cp", "ep", "dp_shard", "micro_batch_size", "interleave", "zero")),
        ("--fix", "activation_checkpoint=999"), ("--fix", "offload=2"), ("--fix", "zero=4"), ("--fix", "pp=999999999"),
        ("--machine", "x" * 5000), ("--machine", "h100:999999999,a100:8"),
    ],
)  # fmt: skip
def test_absurd_flags_are_refused(arguments: Sequence[str]) -> None:
    assert refused("llama3-8b", *CLUSTER, *arguments)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("per_node = 8", f"per_node = {2**31}"), ("per_node = 8", f"per_node = 8\nnodes = {10**30}"),
        ("value = 450e9", "value = 1e308"), ("value = 450e9", "value = 1e-300"), ("value = 3.35e12", "value = 1e300"),
        ("794.5e12]]", "1e300]]"), ("per_node = 8", "per_node = 8\nprediction_interval = [nan, 2.0]"),
    ],
)  # fmt: skip
def test_an_absurd_machine_is_refused(old: str, new: str, tmp_path: Path) -> None:
    text = machine.known()["h100"].read_text("utf-8")
    assert old in text
    path = written(tmp_path, "m.toml", text.replace(old, new, 1))
    assert refused("llama3-8b", "--machine", path, "--batch", "8", "--seq-len", "2048")


CONFIGURATIONS = {
    "config.json": json.dumps(LLAMA), "megatron.args": ARGUMENTS.replace("# theirs", ""), "titan.toml": NEW,
    "model.toml": presets.known()["llama3-8b"].read_text("utf-8"),
    "h100.toml": machine.known()["h100"].read_text("utf-8"),
}  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, old: str, new: str) -> tuple[str, str]:
    """The message and the next step of `plan --json` of a configuration in which `old` is `new`."""
    assert old in CONFIGURATIONS[name]
    path = written(tmp_path, name, CONFIGURATIONS[name].replace(old, new, 1))
    whole = (path, *CLUSTER) if name != "h100.toml" else ("llama3-8b", *CLUSTER, "--machine", path)
    assert answer(["plan", *whole, "--json"]) == BadInput.exit_code
    error = json.loads(capsys.readouterr().out)
    return error["message"], error["next_step"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("config.json", '"num_hidden_layers": 2', '"num_hidden_layers": 0.5'),
        ("config.json", '"hidden_act": "silu"', '"hidden_act": 3'),
        ("config.json", "{", "{{"),
        ("config.json", '"num_attention_heads": 4', '"num_attention_heads": 4, "num_key_value_heads": 3'),
        ("model.toml", "layers = 32", "layers = 0"), ("model.toml", "layers = 32", "layers = 'x'"),
        ("model.toml", "kv_heads = 8", "kv_heads = 7"), ("model.toml", "layers = 32", "layers ="),
        ("h100.toml", "value = 450e9", "value = 1e308"), ("h100.toml", "per_node = 8", "per_node = 0"),
        ("h100.toml", "per_node = 8", "per_node = 8\nprediction_interval = [nan, 2.0]"),
        ("h100.toml", "per_node = 8", "per_node ="),
        ("megatron.args", "--num-layers 32", "--num-layers 0"), ("megatron.args", "--num-layers 32", "--num-layers 'x"),
        ("titan.toml", "\nexpert_parallel_degree =", "\nexpert_parallel_degree = 0 #"),
    ],
)  # fmt: skip
def test_configuration_error_is_a_sentence_with_next_step(
    name: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message, next_step = told(capsys, tmp_path, name, old, new)
    assert ".." not in message
    assert ". - at" not in message
    assert message.endswith(".")
    assert next_step


@pytest.mark.parametrize(
    ("name", "old", "new", "limit"),
    [
        ("config.json", '"num_hidden_layers": 2', '"num_hidden_layers": {}', limits.LAYERS),
        ("config.json", '"hidden_size": 64', '"hidden_size": {}', limits.WIDTH),
        ("config.json", '"num_attention_heads": 4', '"num_attention_heads": {}', limits.HEADS),
        ("config.json", '"vocab_size": 256', '"vocab_size": {}', limits.VOCAB),
        ("megatron.args", "--num-layers 32", "--num-layers {}", limits.LAYERS),
        ("megatron.args", "--global-batch-size 128", "--global-batch-size {}", limits.SAMPLES),
        ("megatron.args", "--seq-length=8192", "--seq-length={}", limits.TOKENS),
        ("titan.toml", "\nexpert_parallel_degree =", "\nexpert_parallel_degree = {} #", limits.DEVICES),
    ],
)
def test_reported_limit_is_the_binding_one(
    name: str, old: str, new: str, limit: limits.Limit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message, _ = told(capsys, tmp_path, name, old, new.format(10**12))
    assert f"{limit.most:,}" in message


def test_every_limit_is_above_the_models_and_machines_known_here() -> None:
    for name in presets.known():
        presets.load(name)
    for name in machine.known():
        machine.load(name)
    assert all(limit.most > 0 and limit.known for limit in limits.LIMITS)
    largest = Model(
        **SMALL | {"layers": 1000, "vocab": 1_000_000, "experts": 1 << 20, "top_k": 1, "moe_ffn_hidden_size": 1}
    )
    assert largest.layers == 1000
    assert Recipe(seq_len=10**9, tokens_per_step=10**9).seq_len == 10**9
    assert Layout(dp_shard=1 << 20).ranks == 1 << 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layout(dp_shard=1 << 13, tp=1 << 13), lambda: Layout(pp=HUGE), lambda: Model(**SMALL, norm_eps=np.inf),
        lambda: Model(**SMALL, rope_theta=float("nan")), lambda: Model(**SMALL | {"vocab": HUGE}),
        lambda: Vit(layers=1, width=HUGE, ffn=1, heads=1),
        lambda: Vit(image=1 << 40, layers=1, width=1, ffn=1, heads=1),
        lambda: Dit(latent=2, width=4, ffn=1, heads=1, plain=HUGE, pooled_width=1),
    ],
)  # fmt: skip
def test_sizes_beyond_a_limit_are_refused(make: object) -> None:
    with pytest.raises(BadJob):
        make()  # type: ignore[operator]


def test_numbers_too_long_to_print_are_shown_by_magnitude() -> None:
    assert limits.show(123_456) == "123,456"
    assert limits.show(1 << 40_000) == "about 10^12041"
    assert limits.show(-(10**30)).startswith("-about 10^")


@pytest.mark.parametrize("digits", ["9" * 5000, f"0x{'f' * 5000}"])
def test_an_integer_of_too_many_digits_is_refused(digits: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        job_file.parse(f"[recipe]\ntokens_per_step = {digits}\n", "job.toml")
    assert refused(written(tmp_path, "m.toml", f"[model]\nlayers = {digits}\n"), *CLUSTER)
    with pytest.raises(BadInput):
        machine.load(written(tmp_path, "machine.toml", f"name = 'm'\nper_node = {digits}\n"))


def test_repeated_key_in_long_file_is_found_in_linear_time(tmp_path: Path) -> None:
    keys = ",".join(f'"{number}": 0' for number in range(60_000))
    path = written(tmp_path, "ds.json", '{"train_batch_size": 8, ' + keys + ', "59999": 0}')
    assert refused("check", path, "--model", "llama3-8b", *CLUSTER)


# Work that grows with the product of admissible sizes


def test_a_space_of_too_many_layouts_is_refused(tmp_path: Path) -> None:
    sizes = SMALL | {"layers": 5040, "heads": 5040, "kv_heads": 5040, "head_dim": 2}
    text = "[model]\n" + "\n".join(f"{key} = {value}" for key, value in sizes.items())
    path = written(tmp_path, "m.toml", text)
    code = answer(["plan", path, "--machine", "h100", "--devices", "720720", "--batch", "720720", "--seq-len", "5040"])
    assert code == BadInput.exit_code


def test_divisors_are_exact_for_large_numbers() -> None:
    assert layout_space.divisors(2**40 - 1)[:4] == (1, 3, 5, 11)
    assert len(layout_space.divisors(14_414_400)) == 504
    assert isinstance(layout_space.divisors(6), tuple), "cached, so nobody may change it"


def test_a_pipeline_of_too_many_operations_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        schedules.order("1f1b", 1 << 12, 1, 1 << 12)
    assert missing_values(str(caught.value), "16,777,216") == []
    assert schedules.MOST_OPERATIONS < MAX_SIMULATED_OPERATIONS


def test_a_model_too_deep_for_unlike_devices_is_refused(tmp_path: Path) -> None:
    text = "[model]\n" + "\n".join(f"{key} = {value}" for key, value in (SMALL | {"layers": 4096}).items())
    machines = ("--machine", "h100:8,a100:8", "--batch", "64", "--seq-len", "64")
    assert refused(written(tmp_path, "m.toml", text), *machines)


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_a_step_of_many_micro_batches_is_extended_exactly_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same step simulated whole."""
    random = np.random.default_rng(0)
    ranks, interleave = 4, 2 if name in schedules.V_SHAPED else 1 if name in schedules.ONE_STAGE else 3
    forward, inputs, weights = random.uniform(1, 2, (3, ranks * interleave))
    step = PipelineTimes(name, ranks, 4 * 700, forward, inputs, weights, 0.1, name in schedules.ONE_STAGE)
    (short,) = simulation.simulate([step])
    monkeypatch.setattr(simulation, "SIMULATED_MICRO_BATCHES", 1 << 20)
    (whole,) = simulation.simulate([step])
    assert short.wall == pytest.approx(whole.wall, rel=1e-3)
    assert short.kept.tolist() == whole.kept.tolist()
    for column in ("busy", "moved", "exchange", "warmup", "steady", "drain"):
        assert getattr(short, column) == pytest.approx(getattr(whole, column), abs=1e-3 * whole.wall)
    idle = short.exchange + short.warmup + short.steady + short.drain
    assert short.busy + idle == pytest.approx(np.full(ranks, short.wall))


def test_a_step_of_a_million_micro_batches_is_simulated_in_part() -> None:
    ones = np.ones(8)
    (ran,) = simulation.simulate([PipelineTimes("1f1b", 8, 1 << 20, ones, ones, ones, 0.0)])
    assert ran.wall == pytest.approx(3 * ((1 << 20) + 7), rel=1e-9)


def test_failures_of_a_long_run_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    single = goodput(3e8, 16_384)
    monkeypatch.setattr(failures, "_NORMAL_LIMIT_FAILURES", 0)
    together = goodput(3e8, 16_384)
    assert (single.share, single.every_s) == (together.share, together.every_s)
    assert together.low == pytest.approx(single.low, rel=1e-2)
    assert together.high == pytest.approx(single.high, rel=1e-2)
    endless = goodput(1e18, 16_384)
    assert endless.low == endless.share == endless.high
    with pytest.raises(BadInput) as caught:
        goodput(1e6, 1 << 27)
    assert missing_values(str(caught.value), "134,217,728") == []
