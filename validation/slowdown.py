"""The gate on real training on this machine: `python -m validation.slowdown`.

Makes ten commits in a copy of this checkout. The sixth slows down one op: the feed-forward layers compute two unused
exponentials, about 5 % of a step. The others change a comment. Then the gate tests a commit that changes nothing and
the slow one, and bisects the ten; the output is the gate's own, with the number of pairs. Half an hour on two cores;
`noop`, `planted` or `bisect` runs one of the three. The runs are kept in validation/out/slowdown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MLP = Path("src/trainyard/train/model/mlp.py")
JOB = ROOT / "examples" / "tiny-one.toml"
PROFILED = "profiled = 40"
WAS = "        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))\n"
PLANTED = """        gated = F.silu(self.gate(x_BTD))
        for _ in range(2):
            gated.detach().exp()
        return self.down(gated * self.up(x_BTD))
"""
COMMITS, CULPRIT = 10, 6
COMMANDS = {
    "noop": ["gate", "run", str(JOB), "--together", "--base", "start", "--head", "commit1"],
    "planted": ["gate", "run", str(JOB), "--together", "--base", f"commit{CULPRIT - 1}", "--head", f"commit{CULPRIT}"],
    "bisect": ["gate", "bisect", "start", f"commit{COMMITS}", "--together", "--alpha", "5%", "--", "unprofiled.toml"],
}


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=planted", "-c", "user.email=planted@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def plant(folder: Path) -> None:
    """Make the copy, with the tags `start`, `commit1` … `commit10`."""
    _git(ROOT, "clone", "-q", str(ROOT), str(folder))
    _git(folder, "tag", "start")
    text = (folder / MLP).read_text()
    if WAS not in text:
        raise SystemExit(f"{MLP}: no line {WAS.strip()!r} to replace.")
    for number in range(1, COMMITS + 1):
        if number == CULPRIT:
            text = text.replace(WAS, PLANTED)
        text += f"# commit {number}\n"
        (folder / MLP).write_text(text)
        _git(folder, "commit", "-q", "-a", "-m", f"commit {number}")
        _git(folder, "tag", f"commit{number}")


def main() -> None:
    chosen = sys.argv[1:] or list(COMMANDS)
    with tempfile.TemporaryDirectory(prefix="planted") as top:
        folder = Path(top) / "copy"
        plant(folder)
        unprofiled = JOB.read_text().replace(PROFILED, "profiled = 0")  # bisection only compares times
        (folder / "unprofiled.toml").write_text(unprofiled)
        environment = {**os.environ, "TRAINYARD_STORE": str(ROOT / "validation" / "out" / "slowdown")}
        for name in chosen:
            began = time.monotonic()
            print(f"\n{name}: trainyard {' '.join(COMMANDS[name])}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "trainyard.cli.main", *COMMANDS[name]], cwd=folder, env=environment, check=False
            )
            print(f"exit code {done.returncode} after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
