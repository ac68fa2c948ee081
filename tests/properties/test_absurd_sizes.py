"""`plan` accepts or rejects any size of any key: exit code 0 or 2, never 70, and no hang."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.test_configurations import MEGATRON_KEYS, SPEED_KEYS, TITAN_KEYS, nested, no_nulls
from tests.predict.configs.test_configs import ARGUMENTS, SPEED
from trainyard import machine
from trainyard.cli.main import answer
from trainyard.formats import toml
from trainyard.models import presets
from trainyard.predict.configs.config_keys import flat

SECONDS = 120
"""Far more than a plan takes, even on a busy machine."""
WHOLE = st.sampled_from([0, -1, 1, 3, 720_720, 2**24, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30, 10**400, -(2**70)])
FLOATS = st.sampled_from([0.5, -1.0, 1e-308, 1e30, 1e308, float("inf"), float("nan")])
SIZES = WHOLE | st.integers() | FLOATS | st.integers(1, 4096)
CLUSTER = ["--machine", "h100", "--devices", "64", "--batch", "64", "--seq-len", "2048"]
PRESETS = ["tiny", "tiny-moe", "tiny-mla", "llama3-8b", "deepseek-v3", "nemotron-h-8b", "vit-b-16", "flux1-dev"]


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises `TimeoutError` if the body runs longer than `SECONDS`."""

    def end(*_: object) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(*arguments: str) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = answer(["plan", *arguments])
    err.seek(0)
    assert code in (0, 2), (code, err.read())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("absurd")


def changed(text: str, draw: st.DrawFn, most: int = 2) -> str:
    """A TOML text with some of its numbers replaced."""
    places = list(re.finditer(r"(?<== )-?\d[\d_.e+-]*(?=$|[ ,}\n])", text, re.MULTILINE))
    for match in sorted(draw(st.lists(st.sampled_from(places), min_size=1, max_size=most)), key=lambda m: -m.start()):
        text = text[: match.start()] + repr(draw(SIZES)) + text[match.end() :]
    return text


@settings(max_examples=60)
@given(data=st.data())
def test_plan_handles_absurd_model_files(data: st.DataObject, folder: Path) -> None:
    path = folder / "model.toml"
    path.write_text(changed(presets.known()[data.draw(st.sampled_from(PRESETS))].read_text("utf-8"), data.draw))
    check(str(path), *(CLUSTER if data.draw(st.booleans()) else CLUSTER[:6]))


@settings(max_examples=30)
@given(data=st.data())
def test_plan_handles_absurd_machine_files(data: st.DataObject, folder: Path) -> None:
    path = folder / "machine.toml"
    path.write_text(
        changed(machine.known()[data.draw(st.sampled_from(["h100", "trn2"]))].read_text("utf-8"), data.draw)
    )
    check("tiny", "--machine", str(path), "--batch", "64", "--seq-len", "256", "--tokens", "1e9")


@settings(max_examples=30)
@given(data=st.data())
def test_plan_handles_absurd_job_files(data: st.DataObject, folder: Path, root: Path) -> None:
    path = folder / "job.toml"
    name = data.draw(st.sampled_from(["tiny.toml", "tiny-fsdp.toml"]))
    path.write_text(changed((root / "examples" / name).read_text("utf-8"), data.draw))
    check(str(path), "--machine", "h100", "--devices", "8")


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["--devices", "--batch", "--seq-len", "--tokens"]), SIZES, min_size=1), SIZES)
def test_plan_handles_absurd_flags(flags: dict[str, Any], other: Any) -> None:
    given_flags = [part for flag, size in flags.items() for part in (flag, str(size))]
    check("tiny", *CLUSTER, *given_flags)
    check("tiny", *CLUSTER, "--fix", f"pp={other}")


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["tp", "pp", "cp", "ep", "dp_shard", "micro_batch_size", "interleave",
                                 "activation_checkpoint"]), max_size=2),
       SIZES)  # fmt: skip
def test_plan_handles_absurd_fixed_axes(axes: list[str], size: Any) -> None:
    check("tiny-moe", *CLUSTER, *(part for axis in axes for part in ("--fix", f"{axis}={size}")))


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip


@settings(max_examples=40)
@given(sizes=st.dictionaries(st.sampled_from(list(CONFIG)[2:]), SIZES, min_size=1, max_size=2))
def test_plan_handles_absurd_config_json(sizes: dict[str, Any], folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | sizes))
    check(str(path), *CLUSTER)


@settings(max_examples=30)
@given(sizes=st.lists(st.tuples(st.sampled_from(MEGATRON_KEYS), SIZES), min_size=1, max_size=2))
def test_plan_handles_absurd_megatron_arguments(sizes: list[tuple[str, Any]], folder: Path) -> None:
    path = folder / "megatron.args"
    path.write_text(ARGUMENTS.replace("# theirs", "") + " ".join(f"--{name} {size}" for name, size in sizes))
    check("check", str(path), "--machine", "h100", "--devices", "64")


@settings(max_examples=30)
@given(sizes=st.dictionaries(st.sampled_from(SPEED_KEYS), SIZES, min_size=1, max_size=2))
def test_plan_handles_absurd_deepspeed_configurations(sizes: dict[str, Any], folder: Path) -> None:
    path = folder / "deepspeed.json"
    path.write_text(json.dumps(nested(flat(SPEED) | sizes)))
    check("check", str(path), "--model", "tiny", *CLUSTER)


@settings(max_examples=30)
@given(sizes=st.dictionaries(st.sampled_from(TITAN_KEYS), SIZES, min_size=1, max_size=2))
def test_plan_handles_absurd_torchtitan_configurations(sizes: dict[str, Any], folder: Path) -> None:
    path = folder / "torchtitan.toml"
    values = no_nulls(nested({"model.flavor": "8B", "training.seq_len": 2048} | sizes))
    path.write_text(toml.dumps(values))
    check("check", str(path), "--machine", "h100", "--devices", "64")
