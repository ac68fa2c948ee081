"""`trainyard gate convergence`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile

_CODES = {"same": 0, "differs": 1, "faster": 1, "slower": 1, "cannot tell": 3}


@click.command()
@click.argument("head", nargs=-1, type=InputFile())
@click.option("--base", multiple=True, type=InputFile(), help="A run to compare with; repeatable.")
@click.option("--golden", type=InputFile(Path), help="Compare with the curves in this file.")
@click.option("--store-golden", type=click.Path(path_type=Path), help="Write HEAD's curves to this file.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    metavar="PERCENT",
    help="Smallest relative difference in loss that matters.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 50, min_open=True),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Maximum rate of false alarms.",
)
@click.option(
    "--mllog", is_flag=True, help="HEAD and BASE are :::MLLOG result logs; BASE may also be reference points."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def command(
    head: tuple[str, ...],
    base: tuple[str, ...],
    golden: Path | None,
    store_golden: Path | None,
    margin: float,
    alpha: float,
    mllog: bool,
    as_json: bool,
) -> None:
    """Compare the losses of HEAD with those of --base, by seed: did a driver, compiler or number format change them?

    Runs (id prefix, tag or folder) are paired by seed; 3 to 5 seeds detect a difference of 0.25 %. Two base runs with
    the same seed (the same job, run twice) show how much runs differ by chance. Curves stored with --store-golden can
    replace --base.

    With --mllog, logs or folders of logs are judged by MLPerf's reference convergence points (RCP); --base is then a
    file of such points (rcps_*.json), or logs.

    Exit codes: 0 bitwise identical or within the margin, 1 different (including better), 2 bad input, 3 not enough
    evidence.
    """
    if not head:
        raise click.UsageError("No HEAD given. Pass at least one run.")
    if not (base or golden or store_golden):
        raise click.UsageError("Nothing to compare HEAD with. Pass --base, --golden or --store-golden.")
    if mllog:
        if golden or store_golden or not base:
            raise click.UsageError("--mllog needs --base (a file of reference points, or logs), and no golden file.")
        verdict = _logs(head, base, as_json)
    else:
        verdict = _runs(head, base, golden, store_golden, margin / 100, alpha / 100, as_json)
    if code := _CODES[verdict]:
        raise click.exceptions.Exit(code)


def _runs(
    head: Sequence[str],
    base: Sequence[str],
    golden: Path | None,
    store_golden: Path | None,
    margin: float,
    alpha: float,
    as_json: bool,
) -> str:
    from msgspec import to_builtins

    from trainyard.cli.support.output import console, echo, print_json, say
    from trainyard.errors import BadInput
    from trainyard.numerics.convergence import golden_curves
    from trainyard.numerics.convergence.compare_curves import judge
    from trainyard.numerics.convergence.curves import curve_of
    from trainyard.numerics.convergence.paired_curves import pair
    from trainyard.report.gate.convergence_table import sentence, table
    from trainyard.report.render.terminal import print_table
    from trainyard.store.store import Store

    store = Store(say=say)
    folders = [store.find(name) for name in (*head, *base)]
    if len(set(folders)) < len(folders):
        twice = next(folder.name for folder in folders if folders.count(folder) > 1)
        raise BadInput(f"run {twice} is given twice.", "A run cannot be compared with itself; pass another one.")
    ours = [curve_of(store.load(name), name) for name in head]
    theirs = [curve_of(store.load(name), name) for name in base]
    if golden:
        theirs.extend(golden_curves.read(golden))
    if store_golden:
        golden_curves.write(store_golden, ours)
        say(f"wrote {len(ours)} curve{'s' * (len(ours) > 1)} to {store_golden}")
    if not theirs:
        if as_json:
            print_json({"schema": "trainyard/convergence/1", "golden": str(store_golden), "curves": len(ours)})
        return "same"
    comparison = judge(pair(ours, theirs), margin, alpha)
    if as_json:
        print_json({"schema": "trainyard/convergence/1", "says": sentence(comparison), **to_builtins(comparison)})
    else:
        echo(f"{sentence(comparison)}\n")
        print_table(table(comparison), console())
    return comparison.verdict


def _logs(head: Sequence[str], base: Sequence[str], as_json: bool) -> str:
    from msgspec import to_builtins

    from trainyard.cli.support.output import console, echo, print_json
    from trainyard.numerics.convergence.mlperf_reference import judge, point_of, read_points, read_result
    from trainyard.report.gate.convergence_table import reached_sentence, reached_table
    from trainyard.report.render.terminal import print_table

    points = [point for name in base if name.endswith(".json") for point in read_points(Path(name))]
    logs = [read_result(path) for name in base if not name.endswith(".json") for path in _files(name)]
    if logs:
        points.append(point_of(logs))
    comparison = judge([read_result(path) for name in head for path in _files(name)], points)
    if as_json:
        print_json({"schema": "trainyard/points/1", "says": reached_sentence(comparison), **to_builtins(comparison)})
    else:
        echo(f"{reached_sentence(comparison)}\n")
        print_table(reached_table(comparison), console())
    return comparison.verdict


def _files(name: str) -> list[Path]:
    """The file itself, or the logs in a folder."""
    from trainyard.errors import BadFile

    path = Path(name)
    if not path.is_dir():
        return [path]
    logs = sorted(inside for inside in path.iterdir() if inside.suffix in (".txt", ".log"))
    if not logs:
        raise BadFile(f"{path}: no logs (.txt or .log) in this folder.")
    return logs
