"""The page's what-if section: its numbers are those of the command, to the ns, and it works without scripts."""

import json
import re
import shlex
from html import unescape
from pathlib import Path

from click.testing import CliRunner

from trainyard import api, machine
from trainyard.cli.trace.analysis import command
from trainyard.report.render import html
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.report.view.build_what_if import what_if_section
from trainyard.trace.measure import measure_files
from trainyard.trace.whatif import grid

DEMO = Path(machine.__file__).parent / "data" / "demo"


def page_of(measured, section) -> str:
    return html.page(view_of(analyse_measured(measured), what_if=section))


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_the_page_has_the_numbers_of_the_command():
    measured = measure_files([DEMO])
    section = data_of(page_of(measured, what_if_section(measured)))["what_if"]
    accounts = [account for account, _, _ in section["accounts"]]
    booked = [point for point in section["points"] if point["ns"]]
    other = next(point for point in section["points"] if not point["ns"])
    for point in (booked[0], other):
        result = api.what_if(DEMO, changes=point["changes"])
        assert point["wall_ns"] == result.after.wall_ns
        assert point["recovered_ns"] == result.recovered_ns
        assert point["interval_ns"] == list(result.interval_ns)
        if point is other:
            continue
        assert sum(point["ns"]) == point["wall_ns"]
        after = {str(account): ns for account, ns in result.after.by_account().items()}
        for account, ns in zip(accounts[:-1], point["ns"]):
            assert ns == after.get(account, 0)
    before = {str(account): ns for account, ns in measured.mean.by_account().items()}
    assert section["ns"][:-1] == [before.get(account, 0) for account in accounts[:-1]]
    assert sum(section["ns"]) == section["wall_ns"] == measured.mean.wall_ns


def test_the_settings_of_a_point_are_its_changes():
    measured = measure_files([DEMO])
    section = what_if_section(measured)
    for point in section.points:
        described = {
            lever.key
            + (f"={lever.speeds[setting]}x" if lever.speeds[setting] else f"={lever.value}" * bool(lever.value))
            for lever, setting in zip(section.levers, point.settings)
            if setting
        }
        assert described == set(point.changes)
    for device in section.devices:
        assert len(device.settings) == len(section.levers)
        assert any(device.settings)


def test_without_scripts_the_page_has_a_table_of_the_grid():
    measured = measure_files([DEMO / "rank0.json.gz"])
    section = what_if_section(measured)
    page = page_of(measured, section)
    static = unescape(re.search(r"<noscript>(.*?)</noscript>", page, re.S)[1])
    for point in section.points:
        assert ", ".join(point.changes) in static
        assert f"{point.wall_ns / 1e6:,.3f}" in static
    for lever in section.levers:
        assert (lever.unavailable or lever.assumes) in static


def test_a_large_trace_states_the_command_that_replays_it(monkeypatch):
    monkeypatch.setattr(grid, "_LIMITS", (grid._Limit(rows=1000, points=12, ledgers=3),))
    section = what_if_section(measure_files([DEMO / "rank0.json.gz"]))
    assert not section.points
    assert section.not_replayed
    assert section.full_command == "trainyard trace PATH --page FILE --what-if"


def test_the_stated_command_replays_every_combination(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "LEVERS", tuple(lever._replace(speeds=lever.speeds[:2]) for lever in grid.LEVERS))
    monkeypatch.setattr(grid, "_LIMITS", (grid._Limit(rows=0, points=12, ledgers=3),))
    trace, page = DEMO / "rank0.json.gz", tmp_path / "page.html"
    section = what_if_section(measure_files([trace]))
    words = shlex.split(section.full_command.replace("PATH", str(trace)).replace("FILE", str(page)))
    done = CliRunner().invoke(command, words[2:])
    assert done.exit_code == 0, done.output
    replayed = data_of(page.read_text(encoding="utf-8"))["what_if"]
    assert len(replayed["points"]) == replayed["combinations"] > 6


def test_the_option_needs_a_page():
    assert CliRunner().invoke(command, [str(DEMO), "--what-if"]).exit_code == 2
