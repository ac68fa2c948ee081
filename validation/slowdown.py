"""The gate against real training on this machine: `python -m validation.slowdown`.

In a copy of this checkout ten commits are made. The sixth plants a slowdown in one op: the feed-forward layers compute
two exponentials that nothing reads, about 5 % of a step. The others change a comment. Then the gate is asked of a
commit that changes nothing, of the planted one, and which commit of the ten did it; each answer is the gate's own, with
the pairs it took. Half an hour on two cores; `noop`, `planted` or `bisect` runs one of them. The runs stay in
validation/out/slowdown.
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
ASKED = {
    "noop": ["gate", "run", str(JOB), "--together", "--base", "start", "--head", "commit1"],
    "planted": ["gate", "run", str(JOB), "--together", "--base", f"commit{CULPRIT - 1}", "--head", f"commit{CULPRIT}"],
    "bisect": ["gate", "bisect", "start", f"commit{COMMITS}", "--together", "--alpha", "5%", "--", "unprofiled.toml"],
}


def _git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=planted", "-c", "user.email=planted@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def plant(folder: Path) -> None:
    """The copy, with the tags `start`, `commit1` … `commit10`."""
    _git(ROOT, "clone", "-q", str(ROOT), str(folder))
    _git(folder, "tag", "start")
    text = (folder / MLP).read_text()
    if WAS not in text:
        raise SystemExit(f"{MLP}: there is no line {WAS.strip()!r} to plant a slowdown in.")
    for number in range(1, COMMITS + 1):
        if number == CULPRIT:
            text = text.replace(WAS, PLANTED)
        text += f"# commit {number}\n"
        (folder / MLP).write_text(text)
        _git(folder, "commit", "-q", "-a", "-m", f"commit {number}")
        _git(folder, "tag", f"commit{number}")


def main() -> None:
    asked = sys.argv[1:] or list(ASKED)
    with tempfile.TemporaryDirectory(prefix="planted") as place:
        folder = Path(place) / "copy"
        plant(folder)
        unprofiled = JOB.read_text().replace(PROFILED, "profiled = 0")  # which commit did it is asked of times alone
        (folder / "unprofiled.toml").write_text(unprofiled)
        environment = {**os.environ, "TRAINYARD_STORE": str(ROOT / "validation" / "out" / "slowdown")}
        for name in asked:
            began = time.monotonic()
            print(f"\n{name}: trainyard {' '.join(ASKED[name])}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "trainyard.cli.main", *ASKED[name]], cwd=folder, env=environment, check=False
            )
            print(f"exit code {done.returncode} after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
