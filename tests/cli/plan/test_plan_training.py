"""`trainyard plan` with recomputed modules and settings of dispatch to experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.plan.test_plan_fabric import fastest_ns, plans
from tests.refused import code_of, missing_values
from trainyard.cli.main import answer

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
    words = ("qwen3-30b-a3b", "--machine", "h100", "--devices", "64", "--batch", "512", "--seq-len", "4096", "--for",
             "megatron", "--fix", "ep=16", "--fix", "pp=1", "--fix", "tp=1", "--fix", "cp=1", "--fix",
             "activation_checkpoint=1")  # fmt: skip
    path = tmp_path / "run.args"
    plain, overlapped = plans(capsys, *words), plans(capsys, *words, "--overlap-dispatch", "--out", str(path))
    assert hidden_ns(plain) == 0 < hidden_ns(overlapped)
    assert fastest_ns(overlapped) < fastest_ns(plain)
    arguments = path.read_text("utf-8").splitlines()
    assert "--overlap-moe-expert-parallel-comm" in arguments
    assert "--recompute-modules layernorm moe_act" in arguments
    checked = plans(capsys, "check", str(path), "--machine", "h100", "--devices", "64")
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
