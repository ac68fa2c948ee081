"""The compiled scanner of Kineto traces under libFuzzer, with the address and undefined-behaviour sanitizers.

atheris sees Python only, so `native/scan.c` has a target of its own (`scan_target.c`), built by clang and guided by the
coverage of the C code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from validation.fuzz.figures import Crash, read_figures, write_figures
from validation.fuzz.readers import corpus, words

NAME = "scan.c"
SOURCE = Path(__file__).parents[2] / "src" / "trainyard" / "trace" / "readers" / "kineto" / "native" / "scan.c"
_TARGET = Path(__file__).with_name("scan_target.c")
_SANITIZERS = ("-g", "-O1", "-std=c11", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
_COVERAGE = ("-fprofile-instr-generate", "-fcoverage-mapping")
_LONGEST = 4096


class Tools(NamedTuple):
    clang: str
    profdata: str
    cov: str


def tools() -> Tools | None:
    """clang and its coverage tools of one version; None if they are not installed."""
    for suffix in ("", *(f"-{version}" for version in range(25, 13, -1))):
        paths = [shutil.which(f"{name}{suffix}") for name in ("clang", "llvm-profdata", "llvm-cov")]
        if all(paths):
            return Tools(*map(str, paths))
    return None


def build(installed: Tools, folder: Path) -> Path:
    program = folder / "scan_fuzz"
    subprocess.run(
        [installed.clang, *_SANITIZERS, *_COVERAGE, "-o", str(program), str(_TARGET), str(SOURCE)], check=True
    )
    return program


def write_seeds(folder: Path) -> Path:
    """The committed corpus of the scanner and the lists of events in that of the Kineto reader."""
    folder.mkdir(exist_ok=True)
    for path in corpus("kineto"):
        data = path.read_bytes()
        begin = data.find(b"[", max(data.find(b'"traceEvents"'), 0)) + 1
        (folder / path.name).write_bytes(b"\0" + data[begin:])
    return folder


def fuzz(program: Path, folder: Path, inputs: int) -> None:
    """Adds to the figures and the corpus in the folder; a crash ends it, and its input is kept."""
    kept = folder / "corpus"
    kept.mkdir(exist_ok=True)
    (folder / "words").write_text("".join(f'"{_escaped(word)}"\n' for word in words("kineto")))
    counted, log = folder / "counted.json", folder / "log"
    before, began = os.times(), time.monotonic()
    with log.open("ab") as file:
        done = subprocess.run(
            [str(program), f"-runs={inputs + 1}", f"-max_len={_LONGEST}", f"-dict={folder / 'words'}", "-timeout=60",
             "-print_final_stats=1", f"-artifact_prefix={folder}/", str(kept), str(write_seeds(folder / "seeds"))],
            env=os.environ | {"FUZZ_FIGURES": str(counted), "LLVM_PROFILE_FILE": os.devnull},
            stdout=file, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    after, figures = os.times(), read_figures(folder)
    counts = json.loads(counted.read_bytes()) if counted.is_file() else {"inputs": 0, "decoded": 0}
    figures.inputs += counts["inputs"]
    figures.decoded += counts["decoded"]
    figures.wall_s += time.monotonic() - began
    figures.cpu_s += after.children_user + after.children_system - before.children_user - before.children_system
    stats = dict(
        line.split(":")[-2:] for line in log.read_text(errors="replace").splitlines() if line.startswith("stat::")
    )
    figures.slowest_s = max(figures.slowest_s, float(stats.get("slowest_unit_time_sec", 0)))
    figures.peak_mb = max(figures.peak_mb, float(stats.get("peak_rss_mb", 0)))
    if done.returncode:
        figures.crashes[f"exit {done.returncode}"] = Crash("see the log", str(log), 1)
    write_figures(folder, figures)


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def cover(installed: Tools, program: Path, folder: Path, inputs: list[Path]) -> dict[str, tuple[int, int]]:
    """Covered and all lines and branches of scan.c, the corpus replayed."""
    raw, merged = folder / "scan.profraw", folder / "scan.profdata"
    replayed = folder / "replayed"
    shutil.rmtree(replayed, ignore_errors=True)
    replayed.mkdir()
    for number, path in enumerate(inputs):
        (replayed / str(number)).write_bytes(path.read_bytes())
    env = os.environ | {"LLVM_PROFILE_FILE": str(raw)}
    subprocess.run([str(program), "-runs=0", str(replayed)], env=env, check=True, capture_output=True)
    subprocess.run([installed.profdata, "merge", "-o", str(merged), str(raw)], check=True)
    done = subprocess.run(
        [installed.cov, "export", "-summary-only", f"-instr-profile={merged}", str(program), str(SOURCE)],
        capture_output=True, check=True,
    )  # fmt: skip
    totals = json.loads(done.stdout)["data"][0]["totals"]
    return {kind: (totals[kind]["covered"], totals[kind]["count"]) for kind in ("lines", "branches")}
