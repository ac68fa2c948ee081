"""The heat map of ranks and the strip of steps on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.page_views import view
from trainyard import api
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.report.render.blocks import EIGHTHS, sparkline
from trainyard.report.render.rank_heat import LONGER, SHORTER, rank_heat
from trainyard.report.render.step_strip import step_strip
from trainyard.report.render.summary import print_analysis
from trainyard.report.render.terminal import print_view
from trainyard.report.view.view import Heat


def heat_of(*rows: tuple[int, ...]) -> Heat:
    names = tuple(f"compute/{index}" for index in range(len(rows)))
    return Heat(
        accounts=names,
        labels=names,
        ranks=tuple(range(len(rows[0]))),
        nodes=("",) * len(rows[0]),
        values=rows,
        deviations=rows,
    )


def test_cells_show_size_and_direction_of_deviations() -> None:
    drawn = rank_heat(heat_of((0, 100, -100, 50), (20, -20, 10, -45)), wall_ns=1000, width=8)
    assert [text.plain for text in drawn.cells.values()] == [" █=▒", "░· -"]
    assert drawn.title == "ranks 0-3"
    assert "100" in drawn.legend


def test_small_deviations_are_not_drawn_in_full() -> None:
    drawn = rank_heat(heat_of((1, -1)), wall_ns=1_000_000, width=8)
    assert drawn.cells["compute/0"].plain == "  "


@given(
    st.lists(st.integers(-1000, 1000), min_size=2, max_size=50),
    st.integers(1, 20),
)
def test_columns_of_several_ranks_show_the_largest_deviation(row: list[int], width: int) -> None:
    cells = rank_heat(heat_of(tuple(row)), wall_ns=1, width=width).cells["compute/0"].plain
    assert len(cells) == min(width, len(row))
    largest = max(row, key=abs)
    if largest:
        assert (LONGER[-1] if largest > 0 else SHORTER[-1]) in cells


def step(label: str, wall_ns: int, rank: int = 0, partial: bool = False) -> Ledger:
    return Ledger(
        wall_ns=wall_ns,
        entries=(Entry(account=Account("unexplained"), ns=wall_ns),),
        scope=Scope(steps=(label,), ranks=(rank,), partial=partial),
    )


def test_strip_has_the_slowest_rank_of_each_full_step() -> None:
    ledgers = [step("0", 99_000_000, partial=True)]
    for rank in (0, 1):
        ledgers += [step("1", 1_000_000 + rank, rank), step("2", 8_000_000 - rank, rank), step("3", 1_000_000, rank)]
    strip = step_strip(ledgers, 80)
    assert strip is not None
    assert "▁█▁" in strip.plain
    assert all(part in strip.plain for part in ("steps 1 to 3", "1.0 ms", "8.0 ms"))
    assert step_strip(ledgers[:2], 80) is None
    assert step_strip([], 80) is None


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=300), st.integers(40, 120))
def test_strip_fits_its_width(times: list[int], width: int) -> None:
    strip = step_strip([step(str(number), ns) for number, ns in enumerate(times)], width)
    assert strip is not None
    assert cell_len(strip.plain) <= width


def test_sparkline_of_no_width_is_empty() -> None:
    assert sparkline([1.0, 2.0], 0) == ""


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_screen_of_a_trace_is_as_wide_as_the_terminal(root, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = api.analyse(root / "src" / "trainyard" / "data" / "demo")
    print_analysis(analysis, Console(width=width))
    shown = capsys.readouterr().out
    assert max(map(cell_len, shown.splitlines())) <= width
    if width >= 80:
        assert "ranks 0-1" in shown
        assert any(cell in shown for cell in LONGER)
        assert any(column in shown for column in EIGHTHS[1:])


def test_waterfall_bars_of_the_screen_follow_one_another(root, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = api.analyse(root / "src" / "trainyard" / "data" / "demo")
    print_analysis(analysis, Console(width=80))
    rows = [line for line in capsys.readouterr().out.splitlines() if " %  " in line]
    begins = [min(line.find(char, 48) for char in "█▐▌" if line.find(char, 48) >= 0) for line in rows[:6]]
    assert begins == sorted(begins)
    assert begins[0] < begins[-1]


def test_full_view_has_a_map_of_all_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = view(64, 0)
    print_view(drawn, Console(width=120))
    shown = capsys.readouterr().out
    assert "Where ranks differ" in shown
    assert "ranks 0-63" in shown
    assert drawn.heat is not None
    lines = shown.splitlines()
    start = next(number for number, line in enumerate(lines) if "Where ranks differ" in line)
    assert all(label[:20] in "\n".join(lines[start : start + 14]) for label in drawn.heat.labels)
