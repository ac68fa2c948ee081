"""Ties, the baseline and folded variants in the command's tables, its JSON and its launch file."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.cli import one_screen
from trainyard import job_file as jobs
from trainyard.cli.main import answer
from trainyard.ledger import encode_hook
from trainyard.predict.search.layout_ratio import StepRatio
from trainyard.report.plans import plan_summary, plan_tables, tied_layouts
from trainyard.report.plans.plans_file import Plans, read

CLUSTER = ("--machine", "h100", "--devices", "64", "--batch", "512", "--seq-len", "8192")
MIXTRAL = ("mixtral-8x7b", *CLUSTER)
LLAMA = ("llama3-70b", *CLUSTER)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert answer(["plan", *words]) == 0
    return capsys.readouterr().out


def plans_of(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> Plans:
    path = folder / "plans.json"
    path.write_text(printed(capsys, *words, "--json"))
    plans = read(path)
    assert plans is not None
    return plans


def cells(plans: Plans) -> list[str]:
    """The cells of the column that compares each layout with the fastest, in the full table."""
    table = plan_tables.layouts(plans)
    at = [column.title for column in table.columns].index(tied_layouts.VERSUS)
    return [str(row[at]) for row in table.rows]


def test_recommended_layout_is_simpler_than_the_fastest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plans = plans_of(capsys, tmp_path, *LLAMA)
    assert plans.best.plan.job.layout.dp_shard == 64
    assert plans.best.baseline
    assert plans.best.is_tied
    assert not plans.best.is_fastest
    assert plans.fastest.is_fastest
    assert plans.fastest.plan.job.layout.tp == 4
    assert cells(plans).count("fastest") == 1
    slower = plans.best.plan.ledger.wall_ns / plans.fastest.plan.ledger.wall_ns
    assert f"{100 * (1 - 1 / slower):.1f} %" in plan_summary.headline(plans)
    assert f"{100 * (slower - 1):.1f} %" in " ".join(tied_layouts.notes(plans))


def test_the_price_of_the_simplest_layout_is_in_the_headline(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plans = plans_of(capsys, tmp_path, *LLAMA, "--tokens", "1e12")
    recommended, fastest = plans.best.bill, plans.fastest.bill
    assert recommended.dollars
    assert fastest.dollars
    assert fastest.dollars < recommended.dollars
    assert f"{fastest.days:,.1f} days and ${fastest.dollars:,.0f}" in plan_summary.headline(plans)


def test_out_writes_the_recommended_layout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "job.toml"
    plans = plans_of(capsys, tmp_path, *LLAMA, "--out", str(out))
    assert jobs.load(out).layout == plans.best.plan.job.layout


def test_untied_baseline_has_its_slowdown_and_is_on_the_screen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plans = plans_of(capsys, tmp_path, *MIXTRAL)
    assert [record.baseline for record in plans.choices] == [False] * 9 + [True]
    ratio = plans.choices[-1].versus_fastest
    assert ratio is not None
    assert cells(plans)[-1] == f"{100 * (ratio.ratio - 1):+.1f} %"
    text = printed(capsys, *MIXTRAL)
    assert cells(plans)[-1] in text
    assert "dp_shard 64 (baseline)" in text


@pytest.mark.parametrize("words", [LLAMA, (*LLAMA, "--tokens", "1e12"), (*LLAMA, "--for", "megatron")])
def test_screen_with_ties_fits_a_terminal(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    one_screen.check(printed(capsys, *words))


@pytest.mark.parametrize(("tokens", "rows"), [(0.0, 5), (1e12, 3)])
def test_screen_always_has_the_fastest_and_the_baseline(
    tokens: float, rows: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With a token budget, the table has the layouts after the first, here the slowest."""
    plans = plans_of(capsys, tmp_path, *LLAMA)
    reversed_rows = msgspec.structs.replace(plans, choices=plans.choices[::-1], tokens=tokens)
    table = plan_summary.summary(reversed_rows)[0]
    assert len(table.rows) == rows
    names = " ".join(str(row[0]) for row in table.rows)
    assert "dp_shard 64 (baseline)" in names
    assert [column.title for column in table.columns].index(tied_layouts.VERSUS) == 4
    assert "fastest" in [row[4] for row in table.rows]


def test_folded_variants_are_counted_and_listed_in_full(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = json.loads(printed(capsys, *MIXTRAL, "--json"))
    folded = [(choice["folded"], len(choice["variants"])) for choice in document["choices"]]
    assert all(count >= listed for count, listed in folded)
    plans = plans_of(capsys, tmp_path, *MIXTRAL)
    (table,) = plan_tables.variants(plans)
    assert len(table.rows) == sum(listed for _, listed in folded) > 20
    assert f"{sum(count for count, _ in folded):,} variants" in table.notes[0]
    assert table.title in printed(capsys, *MIXTRAL, "--full")


def test_missing_baseline_is_explained_in_json_and_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*LLAMA[:-4], "--batch", "96", *LLAMA[-2:])
    reason = json.loads(printed(capsys, *words, "--json"))["no_baseline"]
    assert "96" in reason
    assert reason in " ".join(printed(capsys, *words).split())


def test_checked_configuration_is_compared_with_the_fastest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run.args"
    assert answer(["plan", *LLAMA, "--for", "megatron", "--out", str(out)]) == 0
    capsys.readouterr()
    plans = plans_of(capsys, tmp_path, "check", str(out), "--machine", "h100", "--devices", "64")
    recommended = plans.choices[1]
    assert plans.best.versus_fastest == recommended.versus_fastest
    assert plans.best.is_tied
    assert not plans.best.baseline
    assert plans.fastest is not recommended
    shorter = 100 * (1 - plans.fastest.plan.ledger.wall_ns / plans.best.plan.ledger.wall_ns)
    headline = plan_summary.headline(plans)
    assert f"{shorter:.1f} %" in headline
    assert plan_tables.short(plans.fastest.plan.job.layout) in headline


def test_older_documents_without_ratios_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plans = plans_of(
        capsys, tmp_path, "tiny", "--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "128"
    )
    document = json.loads(msgspec.json.encode(plans, enc_hook=encode_hook))
    for choice in document["choices"]:
        for name in ("versus_fastest", "baseline", "folded", "variants"):
            del choice[name]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    old = read(path)
    assert old is not None
    assert tied_layouts.VERSUS not in [column.title for column in plan_tables.layouts(old).columns]
    assert tied_layouts.notes(old) == ()
    assert plan_tables.variants(old) == ()
    assert len(plan_summary.summary(old)[0].rows) == 5


def test_rows_without_variants_or_ties_need_no_notes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plans = plans_of(
        capsys, tmp_path, "tiny", "--machine", "h100", "--devices", "8", "--batch", "64", "--seq-len", "128"
    )
    alone = msgspec.structs.replace(
        plans.best, versus_fastest=StepRatio(ratio=1.0, low=1.0, high=1.0, tied=True), baseline=True, folded=0
    )
    notes = tied_layouts.notes(msgspec.structs.replace(plans, choices=(alone,)))
    assert len(notes) == 1
    assert tied_layouts.describe_ties(msgspec.structs.replace(plans, choices=(alone,))) == ""
