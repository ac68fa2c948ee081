"""`trainyard plan` with recomputed modules and settings of dispatch to experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.plan.test_plan_fabric import fastest_ns, plans
from tests.refused import code_of, missing_values
from trainyard import machine
from trainyard.api.plan_request import read_request
from trainyard.cli.main import answer
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.search.layout_cost import cost_job
from trainyard.recipe import Recipe

EXPERTS = ("deepseek-v3", "--machine", "h800", "--devices", "512", "--batch", "4096", "--seq-len", "4096", "--for",
           "megatron", "--fix", "dtype=float8", "--fix", "pp=8", "--fix", "ep=64", "--fix", "tp=1", "--fix",
           "interleave=1", "--fix", "micro_batch_size=1", "--fix", "cp=1")  # fmt: skip
DENSE = ("llama3-8b", "--machine", "h200", "--devices", "32", "--batch", "64", "--seq-len", "4096")


def hidden_ns(document: dict[str, Any]) -> int:
    """Hidden time of all-to-alls of the first layout."""
    entries = document["choices"][0]["plan"]["ledger"]["entries"]
    return sum(entry.get("hidden_ns", 0) for entry in entries if entry["account"] == "comm/all_to_all@ep")


def test_settings_of_dispatch_change_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    usual = fastest_ns(plans(capsys, *EXPERTS))
    assert fastest_ns(plans(capsys, *EXPERTS, "--dispatch-dtype", "float8")) < usual
    assert fastest_ns(plans(capsys, *EXPERTS, "--expert-imbalance", "1.5")) > usual
    # With one stage per rank, Megatron Core does not overlap dispatch.
    assert fastest_ns(plans(capsys, *EXPERTS, "--overlap-dispatch")) == usual


def test_overlapped_dispatch_is_hidden_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With 8,192 tokens per device, experts do not wait for their host."""
    words = ("qwen3-30b-a3b", "--machine", "h200", "--devices", "64", "--batch", "512", "--seq-len", "8192", "--for",
             "megatron", "--fix", "ep=16", "--fix", "pp=1", "--fix", "tp=1", "--fix", "cp=1", "--fix",
             "activation_checkpoint=1")  # fmt: skip
    path = tmp_path / "run.args"
    plain, overlapped = plans(capsys, *words), plans(capsys, *words, "--overlap-dispatch", "--out", str(path))
    assert hidden_ns(plain) == 0 < hidden_ns(overlapped)
    assert fastest_ns(overlapped) < fastest_ns(plain)
    arguments = path.read_text("utf-8").splitlines()
    assert "--overlap-moe-expert-parallel-comm" in arguments
    assert "--recompute-modules layernorm moe_act" in arguments
    checked = plans(capsys, "check", str(path), "--machine", "h200", "--devices", "64")
    first, written = (document["choices"][0]["plan"] for document in (overlapped, checked))
    assert written["ledger"]["wall_ns"] == first["ledger"]["wall_ns"]
    assert written["memory"] == first["memory"]


def test_recomputed_modules_trade_time_for_memory(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*DENSE, "--for", "megatron", "--fix", "tp=1", "--fix", "pp=1", "--fix", "cp=1", "--fix", "zero=1", "--fix",
             "micro_batch_size=1", "--fix", "dp_replicate=1")  # fmt: skip
    figures: list[tuple[int, int]] = []
    for fixed, modules in (("0", ()), ("1", ("layernorm",)), ("1", ("layernorm", "mlp")), ("2", ())):
        more = ("--recompute-modules", ",".join(modules)) if modules else ()
        choice = plans(capsys, *words, "--fix", f"activation_checkpoint={fixed}", *more)["choices"][0]["plan"]
        figures.append((choice["ledger"]["wall_ns"], choice["memory"]["activation"]))
    assert figures == sorted(figures)
    activations = [figure[1] for figure in figures]
    assert activations == sorted(activations, reverse=True)
    assert len(set(activations)) == len(figures)


PLAIN = (*DENSE, "--fix", "tp=1", "--fix", "pp=1", "--fix", "cp=1", "--fix", "micro_batch_size=1",
         "--fix", "dp_replicate=1", "--fix", "activation_checkpoint=2")  # fmt: skip


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed"])
def test_moments_and_chunks_of_the_loss_need_less_memory_and_no_time(
    framework: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = (*PLAIN, "--for", framework, "--fix", f"zero={3 if framework == 'torchtitan' else 1}")
    usual, *others = (
        plans(capsys, *words, *more)["choices"][0]["plan"]
        for more in ((), ("--moments-dtype", "bfloat16"), ("--moments-dtype", "float8"), ("--chunked-loss",))
    )
    parts = [{name: other["memory"][name] - bytes_of for name, bytes_of in usual["memory"].items()} for other in others]
    state = usual["memory"]["optimizer_state"]
    per_weight = 8 if framework == "torchtitan" else 12
    for changed, saved_bytes in zip(parts[:2], (4, 6), strict=True):
        assert changed.pop("optimizer_state") == pytest.approx(-state * saved_bytes / per_weight)
        assert not any(changed.values())
    assert parts[2].pop("logits") < 0
    assert not any(parts[2].values())
    assert {other["ledger"]["wall_ns"] for other in others} == {usual["ledger"]["wall_ns"]}
    path = tmp_path / "launch"
    document = plans(capsys, *words, "--moments-dtype", "float8", "--chunked-loss", "--out", str(path))
    notes = path.with_name("launch.notes.txt").read_text("utf-8")
    assert len(document["outside_settings"]) == 2
    assert missing_values(notes, *document["outside_settings"]) == []


def test_logits_of_a_chunked_loss() -> None:
    """16,384 tokens of Llama 3 8B on a device, by hand: 12.6 GB without chunks."""
    job = Job(
        name="m", model=read_request("llama3-8b", None, None, None).model, layout=Layout(),
        recipe=Recipe(seq_len=16384, tokens_per_step=16384, dtype="bfloat16", activation_checkpoint="full"),
    )  # fmt: skip
    framework = FRAMEWORKS["megatron"]
    logits = [
        cost_job(job, machine.load("h200"), framework._replace(keeps=framework.keeps._replace(columns=columns)))
        for columns in ({}, {"chunked_loss": 1.0})
    ]
    whole, chunked = (choice.plan.memory["logits"] for choice in logits)
    table = 128256 * 4096
    assert whole == 16384 * 128256 * (2 + 4)
    assert chunked == 16384 * 4096 * (2 + 4) + 16384 * 4096 * 2 + table * (2 + 4)


def test_a_file_with_formats_of_its_own_keeps_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.args"
    plans(capsys, *PLAIN, "--for", "megatron", "--out", str(path))
    own = ("--use-precision-aware-optimizer", "--exp-avg-dtype bf16", "--exp-avg-sq-dtype bf16")
    path.write_text(path.read_text("utf-8") + "\n".join(own) + "\n", "utf-8")
    words = ("check", str(path), "--machine", "h200", "--devices", "32")
    memories = [
        plans(capsys, *words, *more)["choices"][0]["plan"]["memory"] for more in ((), ("--moments-dtype", "float8"))
    ]
    assert memories[0] == memories[1]


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        ((*DENSE, "--overlap-dispatch", "--for", "megatron"), "bad-input", ("--overlap-dispatch", "llama3-8b")),
        ((*DENSE, "--dispatch-dtype", "float8"), "bad-input", ("--dispatch-dtype", "llama3-8b")),
        ((*DENSE, "--expert-imbalance", "2"), "bad-input", ("--expert-imbalance", "llama3-8b")),
        ((*DENSE, "--recompute-modules", "layernorm"), "bad-input", ("--recompute-modules", "trainyard")),
        ((*DENSE, "--for", "megatron", "--recompute-modules", "mla_up_proj"), "bad-input", ("mla_up_proj",)),
        ((*DENSE, "--for", "megatron", "--recompute-modules", "layernrom"), "unknown-name", ("layernrom",)),
        ((*EXPERTS[:-16], "--dispatch-dtype", "float8"), "bad-input", ("--dispatch-dtype",)),
        (
            (
                "deepseek-v3",
                "--machine",
                "h800:64,h100:64",
                "--batch",
                "512",
                "--seq-len",
                "4096",
                "--overlap-dispatch",
            ),
            "bad-input",
            ("h800:64,h100:64",),
        ),
        ((*DENSE, "--chunked-loss"), "bad-input", ("--chunked-loss", "megatron")),
        ((*DENSE, "--moments-dtype", "bfloat16"), "bad-input", ("--moments-dtype", "megatron")),
        ((*EXPERTS, "--expert-imbalance", "0.5"), "bad-input", ("0.5",)),
        ((*EXPERTS, "--expert-imbalance", "nan"), "bad-input", ("nan",)),
        ((*EXPERTS, "--expert-imbalance", "1e9"), "bad-input", ("--expert-imbalance",)),
    ],
)
def test_settings_that_do_not_apply_are_refused(
    words: tuple[str, ...], code: str, values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *words]) != 0
    printed = capsys.readouterr().err
    assert code_of(printed) == code
    assert missing_values(printed, *values) == []
