"""`trainyard plan --tokens`: costs of a training, their flags and their origins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli import one_screen
from trainyard.api import plan_layouts
from trainyard.cli.main import answer

BAD_INPUT = 2
TINY = ("tiny", "--machine", "h100", "--devices", "4", "--batch", "64", "--seq-len", "128")
BUDGET = ("--tokens", "1e12")
BUDGET_LINES = 21


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert answer(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def bill(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return document(capsys, *TINY, *BUDGET, *words)["choices"][0]["bill"]


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "1e99"])
@pytest.mark.parametrize(
    "flag", ["--mtbf-hours", "--restart-minutes", "--checkpoint-seconds", "--storage-bandwidth", "--power-cap"]
)
def test_impossible_costs_are_bad_input(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", *TINY, *BUDGET, flag, value]) == BAD_INPUT
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--power-cap", "500"),
        (*BUDGET, "--checkpoint-seconds", "5", "--storage-bandwidth", "5"),
        (*BUDGET, "--power-cap", "69"),
    ],
    ids=" ".join,
)
def test_costs_that_cannot_apply_are_bad_input(words: tuple[str, ...]) -> None:
    assert answer(["plan", *TINY, *words]) == BAD_INPUT


@pytest.mark.parametrize("tokens", ["1e22", "inf", "nan", "-1", "0", "1"])
def test_impossible_budgets_are_bad_input(tokens: str) -> None:
    assert answer(["plan", *TINY, "--tokens", tokens]) == BAD_INPUT


@pytest.mark.parametrize("tokens", ["1e15", "1e18"])
def test_the_largest_budgets_are_planned_on_one_device(tokens: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tiny", "--machine", "h100", "--devices", "1", "--batch", "64", "--seq-len", "128", "--tokens", tokens)
    planned = document(capsys, *words)["choices"][0]["bill"]
    seconds = float(tokens) / planned["tokens_per_s"]
    assert planned["days"] == pytest.approx(seconds / 86_400 / planned["goodput"]["share"])


def test_flags_set_what_they_name(capsys: pytest.CaptureFixture[str]) -> None:
    plans = document(
        capsys, *TINY, *BUDGET, "--mtbf-hours", "4000", "--restart-minutes", "30", "--storage-bandwidth", "2",
        "--power-cap", "350",
    )  # fmt: skip
    planned, claims = plans["choices"][0]["bill"], plans["claims"]
    assert planned["goodput"]["mtbf_s"] == 4000 * 3600 / 4
    assert planned["longest_ratio"] == 2
    expected = {
        "mtbf": ("--mtbf-hours", 4000), "restart": ("--restart-minutes", 1800),
        "storage": ("--storage-bandwidth", 2e9), "power_cap": ("--power-cap", 350),
    }  # fmt: skip
    assert {name: (claims[name]["source"], claims[name]["value"]) for name in expected} == expected
    assert claims["price"]["source"]
    assert not claims["price"]["source"].startswith("--")
    assert "checkpoint" not in claims, "its time follows from the storage"


def test_days_with_a_power_cap_have_their_bound(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "llama3-8b", "--machine", "h100", "--devices", "64", "--batch", "256", "--seq-len", "8192",
             "--tokens", "1e12")  # fmt: skip
    lines: list[str] = []
    for cap in (("--power-cap", "100"), ("--power-cap", "700"), ()):
        assert answer([*words, *cap]) == 0
        lines.append(re.split(r"Failures:", " ".join(capsys.readouterr().out.split()).partition(" tokens: ")[2])[0])
    capped, not_below, without = lines
    assert not_below == without
    days, longest = (float(number) for number in re.findall(r"([\d.]+) days", capped))
    assert capped.startswith(without.partition(",")[0])
    assert "100 W" in capped
    assert longest == pytest.approx(7 * days, rel=0.01)
    least, most = (float(number.replace(",", "")) for number in re.findall(r"\$([\d,]+)", capped))
    assert most == pytest.approx(7 * least, rel=0.01)
    assert re.search(r"Wh to [\d.,]+ .?Wh", capped)


def test_checkpoint_seconds_stop_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    short, long = (bill(capsys, "--checkpoint-seconds", seconds) for seconds in ("1", "100"))
    assert (short["goodput"]["save_s"], long["goodput"]["save_s"]) == (1, 100)
    assert long["days"] > short["days"]


@pytest.mark.parametrize(
    ("name", "keys"), [("h800", ["price"]), ("tpu-v5e", ["price", "power"]), ("h100", [])], ids=str
)
def test_unknown_costs_name_the_keys_of_a_machine_file(
    name: str, keys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", "tiny", "--machine", name, "--devices", "4", *TINY[5:], "--tokens", "1e9"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert [key for key in ("price", "power") if f"{key} unknown" in printed] == keys
    assert ("TOML file" in printed) == bool(keys)
    assert [key for key, unit in (("price", "USD"), ("power", "W")) if f"{key} ({unit}" in printed] == keys


def test_full_output_has_the_origin_of_each_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", *TINY, *BUDGET, "--mtbf-hours", "4000", "--full"]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if re.search(r"--mtbf-hours|machine file|default", line)]
    assert len(rows) >= 6, text


def test_a_budget_fits_in_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--machine", "h100", "--devices", "64", "--batch", "512", "--seq-len", "8192", *BUDGET)
    plans = document(capsys, "llama3-8b", *words)
    assert answer(["plan", "llama3-8b", *words]) == 0
    text = capsys.readouterr().out
    one_screen.check(text, lines=BUDGET_LINES)
    planned = plans["choices"][0]["bill"]
    for number in (f"{planned['days']:,.1f} days", f"${planned['dollars']:,.0f}", f"{planned['kwh'] / 1e3:.1f} MWh"):
        assert number in " ".join(text.split()), number
    expected_failures = planned["days"] * 86_400 / planned["goodput"]["mtbf_s"]
    assert f"{expected_failures:.1f} expected" in text


def test_chips_and_ranks_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama3-8b", "--machine", "trn2", "--devices", "16", "--batch", "64", "--seq-len", "8192", *BUDGET)
    plans = document(capsys, *words)
    best = plans["choices"][0]
    layout = best["plan"]["job"]["layout"]
    ranks = layout["dp_replicate"] * layout["dp_shard"] * layout["tp"] * layout["cp"] * layout["pp"]
    assert (plans["devices"], plans["ranks_per_device"], ranks) == (16, 4, 64)
    assert plans["memory_bytes"] == 96e9 / 4
    assert best["bill"]["peak_flops_per_s"] == pytest.approx(16 * 667e12)
    assert {point["devices"] for point in plans["pareto_front"]} == {16}
    assert all(scaled["devices"] == scaled["point"]["devices"] for scaled in plans["scaling"]["strong"]
               if scaled.get("point"))  # fmt: skip
    capsys.readouterr()
    assert answer(["plan", *words]) == 0
    per_chip = best["bill"]["tokens_per_s"] / 16
    assert f"{per_chip:,.0f} tokens/s/device" in " ".join(capsys.readouterr().out.split())


def test_the_model_and_the_peak_of_mfu_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("mixtral-8x7b", "--machine", "h100", "--devices", "64", "--batch", "64", "--seq-len", "4096",
             "--for", "megatron", "--fix", "dtype=float8", "--fix", "pp=1")  # fmt: skip
    plans = document(capsys, *words)
    model, planned = plans["model"], plans["choices"][0]["bill"]
    assert model["parameters"] == pytest.approx(46.7e9, rel=1e-3)
    assert model["active_parameters"] == pytest.approx(12.9e9, rel=1e-2)
    assert planned["peak_dtype"] == "float8"
    assert planned["mfu"] == pytest.approx(
        planned["tokens_per_s"] * model["flops_per_token"] / planned["peak_flops_per_s"], rel=1e-2
    )
    assert answer(["plan", *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "46.7 B parameters (12.9 B active" in text
    assert "of the float8 peak" in text


@pytest.mark.parametrize(
    ("fixed", "missing"), [(("pp=2",), "PipelineModule"), (("tp=2", "pp=1"), "AutoTP")], ids=["pp", "tp"]
)
def test_deepspeed_notes_name_what_its_json_cannot_carry(
    fixed: tuple[str, ...], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ds.json"
    fixes = [word for value in fixed for word in ("--fix", value)]
    words = ("llama3-8b", "--machine", "h100", "--devices", "64", "--batch", "512", "--seq-len", "8192", *fixes)
    assert answer(["plan", *words, "--for", "deepspeed", "--out", str(out)]) == 0
    assert json.loads(out.read_text("utf-8"))["train_batch_size"] == 512
    notes, error = (tmp_path / "ds.json.notes.txt").read_text("utf-8"), " ".join(capsys.readouterr().err.split())
    for word in (missing, "ctivation checkpointing", "8,192", "64"):
        assert word in notes
        assert word in error


def test_megatron_arguments_need_no_notes(tmp_path: Path) -> None:
    out = tmp_path / "run.args"
    assert answer(["plan", *TINY, "--for", "megatron", "--out", str(out)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.args"]


def test_other_numbers_of_devices_are_searched_for_documents_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    scaling = plan_layouts.scaling
    monkeypatch.setattr(plan_layouts, "scaling", lambda *args: searched.append(1) or scaling(*args))
    assert answer(["plan", *TINY, *BUDGET]) == 0
    assert searched == []
    capsys.readouterr()
    assert document(capsys, *TINY, *BUDGET)["scaling"]
    assert searched == [1]


@pytest.mark.parametrize(("tokens", "unit"), [("1e12", "h|days"), ("1e9", "min"), ("6e6", "s")])
def test_short_trainings_have_a_time_and_a_price(tokens: str, unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tiny", *TINY[1:], "--tokens", tokens)
    known = document(capsys, *words)["choices"][0]["bill"]
    capsys.readouterr()
    assert answer(["plan", *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    printed = re.search(rf"tokens: ([\d,.]+) (?:{unit}) \([\d,.]+ to [\d,.]+\), \$([\d,.]+),", text)
    assert printed, text
    time, dollars = (float(number.replace(",", "")) for number in printed.groups())
    assert time > 0
    assert dollars == pytest.approx(known["dollars"], abs=0.5 if known["dollars"] >= 100 else 0.005)


def test_tables_show_short_trainings_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", *TINY, "--tokens", "1e6", "--full"]) == 0
    text = capsys.readouterr().out
    heads = [line.split() for line in text.splitlines() if line.startswith(("Layout ", "Devices, "))]
    assert len(heads) == 3
    assert all("s" in head and "days" not in head for head in heads)
    first = next(line for line in text.splitlines() if "one rank" in line or re.match(r"dp_\w+ ", line))
    assert re.search(r" \d+\.\d +0\.\d\d ", first)
