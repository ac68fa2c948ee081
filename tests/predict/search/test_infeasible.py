"""Messages on layouts that do not fit or divide: ranks and devices of machines that have several ranks per device."""

import json
from pathlib import Path

import pytest

from tests.refused import missing_values
from trainyard.cli.main import answer
from trainyard.machine import known, load
from trainyard.predict.search.infeasible import unit_of_ranks


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The error of a plan that has no layout, in one line."""
    assert answer(["plan", *words, "--batch", "64", "--seq-len", "8192"]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_suggested_number_of_devices_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "llama3-70b", "--machine", "trn1", "--devices", "16")
    assert missing_values(error, "32 ranks", "64 devices would be enough") == []
    enough = ["plan", "llama3-70b", "--machine", "trn1", "--devices", "64", "--batch", "64", "--seq-len", "8192"]
    assert answer(enough) == 0


def test_the_suggested_slice_of_a_torus_can_be_rented(capsys: pytest.CaptureFixture[str]) -> None:
    assert "16 devices would be enough" in refusal(capsys, "llama3-8b", "--machine", "tpu-v5e", "--devices", "7")
    enough = ["plan", "llama3-8b", "--machine", "tpu-v5e", "--devices", "16", "--batch", "64", "--seq-len", "8192"]
    assert answer(enough) == 0


def test_the_suggested_parts_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "llama3-70b", "--machine", "trn1:8,trn2:4")
    assert missing_values(error, "trn1:8", "trn2:4", "each rank lacks", "trn1:32,trn2:16 would be enough") == []


@pytest.mark.parametrize(("machine", "count"), [("trn1", "32 ranks"), ("h100", "16 devices")])
def test_remainders_are_those_of_ranks(machine: str, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "llama3-8b", "--machine", machine, "--devices", "16", "--fix", "pp=3")
    assert missing_values(error, f"no layout of {count}", f"{count} % pp 3") == []


def test_uneven_parts_need_a_multiple_of_their_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 63 devices have 126 ranks: at most 32 stages need at least 4 ranks, those of 2 devices, in each.
    other = tmp_path / "other.toml"
    other.write_text(known()["trn1"].read_text("utf-8").replace("0.512", "0.6"), "utf-8")
    error = refusal(capsys, "llama3-8b", "--machine", f"trn1:31,{other}:32")
    assert missing_values(error, "63 stages", "multiple of 2 devices") == []


@pytest.mark.parametrize(("parts", "least"), [("h100:8,a100:8", 2), ("h100:8,a100:16", 3)])
def test_a_pp_of_fewer_stages_than_parts_is_to_be_left_out(
    parts: str, least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(capsys, "llama3-8b", "--machine", parts, "--fix", "pp=1")
    assert missing_values(error, f"pp must be a multiple of {least}", "Leave out --fix pp") == []
    allowed = ["plan", "llama3-8b", "--machine", parts, "--batch", "64", "--seq-len", "8192"]
    assert answer([*allowed, "--fix", f"pp={least}"]) == 0


@pytest.mark.parametrize(
    ("names", "unit"), [(("h100", "a100"), "devices"), (("trn2",), "ranks"), (("h100", "trn1"), "ranks")]
)
def test_the_unit_is_ranks_if_any_device_has_several(names: tuple[str, ...], unit: str) -> None:
    assert unit_of_ranks(map(load, names)) == unit


EIGHT = ("--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "8192")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("llama3-8b", *EIGHT, "--fix", "micro_batch_size=5"), ("64 samples % micro_batch_size 5 = 4",)),
        (("llama3-8b", *EIGHT, "--fix", "interleave=4", "--fix", "pp=1"), ("pp above 1",)),
        (("llama3-8b", *EIGHT, "--fix", "schedule=1f1b", "--fix", "interleave=2"), ("interleave 1",)),
        (("llama3-8b", *EIGHT, "--fix", "schedule=zbv", "--fix", "interleave=4"), ("interleave 2",)),
        (("llama3-8b", *EIGHT, "--fix", "schedule=looped_bfs", "--fix", "interleave=1"), ("interleave above 1",)),
        (
            ("llama3-8b", *EIGHT, "--fix", "schedule=zbv", "--fix", "activation_checkpoint=full"),
            ("splits the backward pass",),
        ),
        (("llama3-8b", *EIGHT, "--for", "deepspeed", "--fix", "zero=3", "--fix", "pp=2"), ("ZeRO-1", "ZeRO-2")),
        (("mixtral-8x7b", *EIGHT, "--for", "deepspeed", "--fix", "ep=8", "--fix", "tp=4"), ("ep is 1",)),
        (("llama3-8b", *EIGHT, "--for", "torchtitan", "--fix", "zero=1"), ("zero is 2 or 3",)),
        (("llama3-8b", *EIGHT, "--for", "deepspeed", "--fix", "tp=2", "--fix", "pp=2"), ("with tp = 2, pp is 1",)),
        (("llama3-8b", *EIGHT, "--fix", "zero=1", "--fix", "tp=2"), ("with tp = 2, zero is 2 or 3",)),
        (("llama3-8b", *EIGHT, "--for", "megatron", "--fix", "zero=3"), ("sharded with ZeRO-3, only with ZeRO-1",)),
        (
            ("llama3-8b", *EIGHT, "--for", "megatron", "--fix", "zero=3", "--fix", "dp_shard=8"),
            ("with dp_shard = 8, zero is 1",),
        ),
        (("llama3-8b", *EIGHT, "--for", "megatron", "--fix", "zero=3"), ("ZeRO-3",)),
        (("llama3-8b", *EIGHT, "--fix", "tp=2", "--fix", "tp=4"), ("--fix tp", "2 and 4")),
        (
            ("llama3-8b", "--machine", "h100", "--devices", "64", "--batch", "64", "--seq-len", str(1 << 20),
             "--for", "deepspeed"),
            ("--for trainyard",),
        ),
        (
            ("llama3-8b", "--machine", "h100", "--devices", "64", "--batch", "64", "--seq-len", str(1 << 32)),
            ("7,340,032 tokens",),
        ),
        (
            ("llama3-405b", "--machine", "h100", "--devices", "8", "--batch", "8", "--seq-len", "8192"),
            ("326.3 MB too much", "4.7 TB too much", "112 devices would be enough"),
        ),
    ],
)  # fmt: skip
def test_the_reason_and_the_remedy_are_true(
    words: tuple[str, ...], values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *words]) == 2
    assert missing_values(capsys.readouterr().err, *values) == []


def test_a_fixed_zero_stage_shards_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", "llama3-8b", *EIGHT, "--fix", "zero=3", "--json"]) == 0
    choices = json.loads(capsys.readouterr().out)["choices"]
    layouts = [choice["plan"]["job"]["layout"] for choice in choices]
    assert all(
        layout.get("dp_replicate", 1) == 1 or layout.get("dp_shard", 1) * layout.get("cp", 1) > 1 for layout in layouts
    )
    assert any(layout.get("dp_shard", 1) > 1 for layout in layouts)


@pytest.mark.parametrize(("framework", "name"), [("megatron", "DDP or ZeRO-1"), ("torchtitan", "FSDP or DDP")])
def test_a_plain_layout_that_does_not_fit_has_its_name(
    framework: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("llama3-70b", "--machine", "h100", "--devices", "64", "--batch", "64", "--seq-len", "65536")
    assert answer(["plan", *words, "--for", framework, "--json"]) == 0
    assert f"Plain {name} does not fit" in json.loads(capsys.readouterr().out)["no_baseline"]
