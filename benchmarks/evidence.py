"""Shows what trainyard does on an accelerator: `make device-evidence`.

Writes `evidence/<device>-<date>/`, 2 MB at most: the device tests' outcome, the run folder of the largest dense
job that fits (without its raw traces), one trimmed trace, and the ledger read back from it. Needs torch and the
base libraries, nothing else; where there is no accelerator it says so and succeeds.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import EnvironmentFailed

ROOT = Path(__file__).parents[1]
LIMIT = 2_000_000
TRACE_LIMIT = 1_200_000
STATE_BYTES = 16
"""A parameter's float32 weight, gradient and two moments."""
SHARE = 0.6
"""Of the memory for that state; the rest is for activations, buckets and fragments."""
LEAST_TO_NEED = ("python_function", "cpu_op", "user_annotation")
"""Categories of events that a trimmed trace drops, in this order, until it is small enough."""


class Size(NamedTuple):
    """A decoder with gated feed-forward, four query heads to a key/value head of 128."""

    layers: int
    width: int

    @property
    def ffn(self) -> int:
        return 7 * self.width // 2

    @property
    def parameters(self) -> int:
        attention = self.width * self.width * 5 // 2
        return self.layers * (attention + 3 * self.width * self.ffn)


SIZES = (Size(40, 5120), Size(32, 4096), Size(28, 3072), Size(24, 2048), Size(12, 1024), Size(6, 512))


def main() -> int:
    names, memory = accelerators()
    if not names:
        print("There is no accelerator here (or no torch that sees it): nothing to show.")
        return 0
    if missing := [name for name in ("click", "rich", "msgspec", "numpy", "pytest") if find_spec(name) is None]:
        print(f"{', '.join(missing)} is not here. Bring it along: 'make carry' packs it.", file=sys.stderr)
        return EnvironmentFailed.exit_code
    slug = re.sub(r"[^a-z0-9]+", "-", names[0].lower()).strip("-")
    place = ROOT / "evidence" / f"{slug}-{datetime.now(UTC):%Y-%m-%d}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    tested = _tests(place)
    ran = _largest_job(place, len(names), memory)
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    print(f"{place.relative_to(ROOT)}: {size / 1e6:.2f} MB")
    if size > LIMIT:
        print(f"That is more than {LIMIT / 1e6:.0f} MB: something there is not small.", file=sys.stderr)
    return 0 if tested and ran and size <= LIMIT else 1


def accelerators() -> tuple[list[str], int]:
    """The devices' names as torch reports them, and the smallest one's memory (bytes)."""
    try:
        import torch
    except ImportError:
        return [], 0
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [one.name for one in found], min((one.total_memory for one in found), default=0)


def _tests(place: Path) -> bool:
    done = _call([sys.executable, "-m", "pytest", "-m", "device", "tests"])
    (place / "tests.txt").write_text(done.stdout + done.stderr, "utf-8")
    print(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr)
    return done.returncode == 0


def _largest_job(place: Path, ranks: int, memory: int) -> bool:
    """The largest size that should fit, then the next smaller ones until one runs."""
    fitting = [size for size in SIZES if size.parameters * STATE_BYTES <= SHARE * memory * ranks]
    for size in fitting:
        with tempfile.TemporaryDirectory() as folder:
            job = place / "job.toml"
            job.write_text(job_text(size, ranks), "utf-8")
            store = Path(folder)
            done = _trainyard(["run", str(job)], store)
            (place / "run.txt").write_text(done.stdout + done.stderr, "utf-8")
            print(f"{size.parameters / 1e9:.1f} G parameters on {ranks}: exit code {done.returncode}")
            if done.returncode == 0:
                _keep(next((store / "runs").iterdir()), place, store)
                return True
    return False


def job_text(size: Size, ranks: int) -> str:
    """A job of about 8,192 tokens a rank and step, sharded over all ranks."""
    heads = size.width // 128
    return f"""name = "evidence"

[model]
name = "dense-{size.parameters / 1e9:.1f}g"
layers = {size.layers}
width = {size.width}
ffn = {size.ffn}
heads = {heads}
kv_heads = {heads // 4}
head_dim = 128

[layout]
dp_shard = {ranks}

[recipe]
seq_len = 2048
tokens_per_step = {8192 * ranks}
microbatch = 2
dtype = "bfloat16"
remat = "full"

[measure]
warmup = 3
steps = 10
repeats = 3
profiled = 2
"""


def _keep(run: Path, place: Path, store: Path) -> None:
    shutil.copytree(run, place / "run", ignore=shutil.ignore_patterns("traces"))
    traces = sorted(path for path in (run / "traces").rglob("*") if path.is_file())
    trimmed = place / "trace.json.gz"
    trimmed.write_bytes(trim(_read(traces[0])))
    done = _trainyard(["trace", str(trimmed)], store)
    (place / "ledger.txt").write_text(done.stdout + done.stderr, "utf-8")


def _read(path: Path) -> dict:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def trim(trace: dict, limit: int = TRACE_LIMIT) -> bytes:
    """The last marked step of a Kineto trace, gzipped, without what explains least until it fits `limit` bytes."""
    events = trace["traceEvents"]
    marks = [event for event in events if str(event.get("name", "")).startswith("ProfilerStep#") and "dur" in event]
    if marks:
        last = max(marks, key=lambda mark: float(mark["ts"]))
        begin = float(last["ts"])
        events = [event for event in events if event.get("ph") == "M" or float(event.get("ts", 0)) >= begin]
    dropped: set[str] = set()
    for category in ("", *LEAST_TO_NEED):
        dropped.add(category)
        kept = [event for event in events if event.get("cat", "none") not in dropped]
        data = gzip.compress(json.dumps({**trace, "traceEvents": kept}).encode(), mtime=0)
        if len(data) <= limit:
            break
    return data


def _trainyard(args: Sequence[str], store: Path) -> subprocess.CompletedProcess[str]:
    return _call([sys.executable, "-m", "trainyard.cli.main", *args], TRAINYARD_STORE=str(store))


def _call(command: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=900
    )


if __name__ == "__main__":
    raise SystemExit(main())
