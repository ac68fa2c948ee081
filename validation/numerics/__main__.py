"""Acceptance suite of the comparison of numerics: `python -m validation.numerics [faults|curves|benign|parts|tables]`.

`faults`: records the good and the faulty variant of each planted fault (`faults.py`) and compares them. An alarm names
the fault if the reported tensor, or an operation from which it follows and that only one side computes, is at one of
the locations that were accepted in advance. `benign`: ten pairs of each set-up of
`benign.py`, which must not raise an alarm. `curves`: the verdict on the loss curves of each fault, 80 steps with four
seeds. `parts`: `numerics bisect --swap outputs` on each fault and on a pair of each set-up. `tables`: the results so
far. Without an argument: everything.

Finished trials are lines of validation/out/numerics.jsonl and are not repeated. `--only TEXT`: those whose ids contain
TEXT. `--seeds N`: pairs of each set-up. `--jobs N`: trials at the same time; with OMP_NUM_THREADS=1, as many as the
machine has cores. `--page FILE`: writes the tables as a page of the documentation.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

from trainyard.errors import TrainyardError
from validation.numerics.benign import SEEDS, SETUPS, Setup
from validation.numerics.fault import Fault
from validation.numerics.faults import FAULTS
from validation.numerics.loss_curves import judge_curves
from validation.numerics.recorded_pair import CommandFailed, compare, find_parts, record, reproduce
from validation.numerics.tables import benign_table, fault_table, list_errors, page, parts_table
from validation.numerics.trials import BenignTrial, CurveTrial, FaultTrial, PartsTrial, Trial, Trials

OUT = Path(__file__).parents[1] / "out"
PARTS = ("faults", "curves", "benign", "parts")


def try_fault(fault: Fault, folder: Path) -> FaultTrial:
    """Records both variants of a fault into a folder and compares them."""
    good, faulty = folder / "good", folder / "faulty"
    reference_s = record(good, fault.command(sys.executable, faulty=False), plain=False)
    suspect_s = record(faulty, fault.command(sys.executable, faulty=True), plain=True)
    result = compare(good, faulty)
    began = time.monotonic()
    reproduced = reproduce(good, faulty, folder / "reproducer.py") if result.alarm else ""
    return FaultTrial(
        id=fault.id,
        verdict=result.verdict,
        undetectable=result.undetectable,
        named=result.alarm and any(fault.names(location) for location in (result.location, *result.causes)),
        location=result.location,
        causes=result.causes,
        reproduced=reproduced,
        reproduce_s=round(time.monotonic() - began, 1),
        reference_s=round(reference_s, 1),
        suspect_s=round(suspect_s, 1),
        compare_s=result.seconds,
        when=_now(),
    )


def try_setup(setup: Setup, seed: int, reference: Path, folder: Path) -> BenignTrial:
    """Records the suspect of a pair into a folder, and compares it with a recorded reference."""
    suspect = folder / "suspect"
    seconds = record(suspect, setup.commands(sys.executable, seed)[1], plain=True)
    result = compare(reference, suspect)
    return BenignTrial(
        id=setup.id,
        seed=seed,
        verdict=result.verdict,
        undetectable=result.undetectable,
        location=result.location,
        seconds=round(seconds + result.seconds, 1),
        when=_now(),
    )


def try_curves(fault: Fault) -> CurveTrial:
    return CurveTrial(id=fault.id, result=judge_curves(fault), when=_now())


def try_parts(id: str, good: Sequence[str], suspect: Sequence[str], fault: Fault | None, folder: Path) -> PartsTrial:
    """Records the good command into a folder, and names the parts of the suspect one that differ."""
    record(folder / "good", good, plain=True)
    differing = find_parts(folder / "good", suspect, folder / "parts")
    return PartsTrial(
        id=id,
        parts=differing.names,
        named=fault is not None and any(map(fault.names, differing.locations)),
        reason=differing.reason,
        seconds=differing.seconds,
        when=_now(),
    )


def run_faults(pool: Executor, trials: Trials, faults: Sequence[Fault]) -> Iterator[Future[None]]:
    for fault in faults:
        if not trials.has_result("fault", fault.id):
            yield pool.submit(_run_fault, trials, fault)


def run_curves(pool: Executor, trials: Trials, faults: Sequence[Fault]) -> Iterator[Future[None]]:
    for fault in faults:
        if not trials.has_result("curve", fault.id):
            yield pool.submit(_add, trials, partial(try_curves, fault), CurveTrial(id=fault.id))


def run_parts(
    pool: Executor, trials: Trials, faults: Sequence[Fault], setups: Sequence[Setup]
) -> Iterator[Future[None]]:
    python = sys.executable
    pairs: list[tuple[str, list[str], list[str], Fault | None]] = [
        *(
            (fault.id, fault.command(python, faulty=False), fault.command(python, faulty=True), fault)
            for fault in faults
        ),
        *((setup.id, *setup.commands(python, 0), None) for setup in setups),
    ]
    for id, good, suspect, fault in pairs:
        if not trials.has_result("parts", id):
            yield pool.submit(_run_parts, trials, id, good, suspect, fault)


def _run_parts(trials: Trials, id: str, good: list[str], suspect: list[str], fault: Fault | None) -> None:
    with _folder() as folder:
        _add(trials, partial(try_parts, id, good, suspect, fault, Path(folder)), PartsTrial(id=id))


def run_benign(pool: Executor, trials: Trials, setups: Sequence[Setup], seeds: int) -> Iterator[Future[None]]:
    """Set-ups with the same reference share its recording."""
    for seed in range(seeds):
        groups: dict[tuple[str, ...], list[Setup]] = defaultdict(list)
        for setup in setups:
            if not trials.has_result("benign", setup.id, seed):
                groups[tuple(setup.commands(sys.executable, seed)[0])].append(setup)
        for command, group in groups.items():
            yield pool.submit(_run_group, trials, command, group, seed)


def _run_fault(trials: Trials, fault: Fault) -> None:
    with _folder() as folder:
        _add(trials, partial(try_fault, fault, Path(folder)), FaultTrial(id=fault.id))


def _run_group(trials: Trials, command: Sequence[str], group: Sequence[Setup], seed: int) -> None:
    with _folder() as folder:
        reference = Path(folder, "reference")
        try:
            record(reference, command, plain=False)
        except (CommandFailed, TimeoutExpired) as failure:
            for setup in group:
                trials.append(BenignTrial(id=setup.id, seed=seed, error=str(failure), when=_now()))
            return
        for setup in group:
            suspect = Path(folder, setup.id)
            _add(trials, partial(try_setup, setup, seed, reference, suspect), BenignTrial(id=setup.id, seed=seed))
            shutil.rmtree(suspect, ignore_errors=True)


def _add(trials: Trials, attempt: Callable[[], Trial], failed: Trial) -> None:
    """Appends the result of an attempt, or `failed` with the reason."""
    try:
        trial = attempt()
    except (CommandFailed, TimeoutExpired, TrainyardError) as failure:
        values = {name: getattr(failed, name) for name in failed.__struct_fields__}
        trial = type(failed)(**{**values, "error": str(failure), "when": _now()})
    trials.append(trial)
    print(f"{trial.id}: {trial.error or trial}", flush=True)


def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for recordings, which is removed afterwards."""
    OUT.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=OUT, prefix="numerics-", ignore_cleanup_errors=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "tables"], default=[])
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path, metavar="FILE")
    options = parser.parse_args()
    trials = Trials(OUT / "numerics.jsonl")
    faults = [fault for fault in FAULTS if options.only in fault.id]
    parts = options.parts or PARTS
    setups = [setup for setup in SETUPS if options.only in setup.id]
    with ThreadPoolExecutor(options.jobs) as pool:
        started: list[Future[None]] = []
        if "faults" in parts:
            started += run_faults(pool, trials, faults)
        if "curves" in parts:
            started += run_curves(pool, trials, faults)
        if "benign" in parts:
            started += run_benign(pool, trials, setups, options.seeds)
        if "parts" in parts:
            started += run_parts(pool, trials, faults, setups)
        for future in started:
            future.result()
    print(f"\n{fault_table(trials)}\n{benign_table(trials)}\n{parts_table(trials)}")
    if options.page is not None:
        options.page.write_text(page(trials), "utf-8")
    if errors := list_errors(trials):
        print(f"Trials without a result:\n\n{errors}")


if __name__ == "__main__":
    main()
