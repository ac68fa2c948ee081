"""Records jobs that no rule was written for, diagnoses them, and checks each finding on the raw events.

`python -m validation.unseen [FOLDER...]`: without a folder, the jobs of `jobs.py` are recorded into a temporary folder;
each given folder is one job's traces (JSON of torch.profiler on a CPU, plain or gzip). Needs torch to record.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from validation.unseen.claims import Check, check_finding, check_steps
from validation.unseen.jobs import JOBS
from validation.unseen.raw import load

_ANSWER = {True: "yes", False: "NO", None: "cannot tell"}


def record(folder: Path, name: str) -> Path:
    """Records a job; returns the folder with the traces of its ranks."""
    traces = folder / name
    traces.mkdir()
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={JOBS[name][0]}"]
    _run([sys.executable, "-m", *launcher, "-m", "validation.unseen.jobs", str(traces), name])
    return traces


def _run(command: list[str]) -> str:
    """The output of a command; ends the program with its messages if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def check_job(folder: Path) -> Iterator[tuple[str, Check]]:
    """(rule, check) of each claim about the traces in a folder; the rule is `steps` for the steps."""
    paths = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    code = "import sys; from trainyard.cli.main import main; sys.exit(main())"
    analysis: dict[str, Any] = json.loads(_run([sys.executable, "-c", code, "trace", "--json", *map(str, paths)]))
    ranks = [load(path) for path in paths]
    print(f"{folder.name}: {analysis['headline']}", flush=True)
    for check in check_steps(analysis, ranks):
        yield "steps", check
    for finding in analysis["findings"]:
        for check in check_finding(finding, ranks):
            yield finding["rule"], check


def main(folders: list[Path]) -> None:
    """Prints a line for each claim, and how many agree."""
    answers: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        for folder in folders or (record(Path(temporary), name) for name in JOBS):
            for rule, check in check_job(folder):
                answer = _ANSWER[check.agrees]
                answers[answer] += 1
                print(f"  {rule:<20}{check.claim[:58]:<60}{check.value[:75]:<77}{answer}", flush=True)
    print(f"{answers.total()} claims: {', '.join(f'{count} {answer}' for answer, count in answers.items())}")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
