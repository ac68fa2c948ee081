"""One reader under atheris: `python -m validation.fuzz.worker READER --folder FOLDER --inputs N`.

An exception is written down with its input, and fuzzing continues; a hang or the death of the process is left to
libFuzzer. Figures and corpus are kept in the folder, so that a worker continues where the last one ended.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import resource
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from random import Random

import atheris
from atheris.import_hook import HookManager

from trainyard.errors import BadInput
from validation.fuzz import result_caches
from validation.fuzz.figures import Crash, read_figures, write_figures
from validation.fuzz.readers import READERS, Passed, Reader, corpus, words

SECONDS = 60
"""Wall-clock limit of one input, after which libFuzzer ends the process: the machine may be busy."""
MEMORY_MB = 4096
_RAW, _BOTH = 0.25, 0.1
"""Shares of the inputs that are changed as bytes only, and as bytes after a change of the structure."""
_EVERY = 500


class Fuzzing:
    def __init__(self, name: str, reader: Reader, folder: Path, inputs: int) -> None:
        self.reader, self.folder, self.last = reader, folder, inputs
        self.words = words(name)
        self.seeds = [path.read_bytes() for path in corpus(name)]
        self.chance = Random()
        self.done = 0
        self.figures = read_figures(folder)
        self.last += self.figures.inputs
        self.before_s = self.figures.wall_s - time.monotonic(), self.figures.cpu_s - time.process_time()
        self.work = Path("/dev/shm" if os.path.isdir("/dev/shm") else folder) / f"trainyard-fuzz-{os.getpid()}"  # noqa: S108
        self.work.mkdir()
        self.passed = Passed(reader.decoding)
        self.peak = peak_mb()
        self.ignored: list[Exception] = []
        """Exceptions that Python prints and drops, as from a generator's end."""
        sys.unraisablehook = lambda ignored: self.ignored.append(ignored.exc_value)  # pyright: ignore[reportArgumentType]

    def once(self, data: bytes) -> None:
        self.passed.once = False
        began = time.process_time()
        try:
            kept = self.reader.read(data, self.work)
            self.passed.once |= kept
            self.figures.accepted += kept
        except BadInput as error:
            self.passed.settle(error)
        except Exception as error:
            self.note(data, error)
        while self.ignored:
            self.note(data, self.ignored.pop())
        figures = self.figures
        figures.slowest_s = max(figures.slowest_s, time.process_time() - began)
        figures.inputs += 1
        self.done += 1
        figures.decoded += self.passed.once
        if (peak := peak_mb()) > self.peak:
            if self.done > _EVERY:  # the first ones import what they need
                figures.grown_mb = max(figures.grown_mb, peak - self.peak)
            self.peak = peak
        if figures.inputs % _EVERY == 0 or figures.inputs >= self.last:
            self.save()
        if figures.inputs >= self.last:
            for path in sorted(self.work.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            self.work.rmdir()
            sys.stdout.flush()
            os._exit(0)

    def save(self) -> None:
        self.figures.peak_mb = max(self.figures.peak_mb, self.peak)
        self.figures.wall_s = self.before_s[0] + time.monotonic()
        self.figures.cpu_s = self.before_s[1] + time.process_time()
        write_figures(self.folder, self.figures)

    def note(self, data: bytes, error: Exception) -> None:
        """One crash for each kind of exception and line of trainyard that raised it; its shortest input is kept."""
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "trainyard" in frame.filename]
        where = f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else "?"
        key = f"{type(error).__name__} {where}"
        crash = self.figures.crashes.setdefault(key, Crash(f"{type(error).__name__}: {error}"[:300], ""))
        crash.count += 1
        path = self.folder / "crashes" / hashlib.sha256(key.encode()).hexdigest()[:12]
        if not crash.file or not path.is_file() or path.stat().st_size > len(data):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            crash.file = path.name

    def change(self, data: bytes, chance: Random) -> bytes:
        """Empty for an input whose structure cannot be read."""
        try:
            return self.reader.mutate(data, chance, self.words)
        except (ValueError, RecursionError):
            return b""

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        chance = self.chance
        chance.seed(seed)
        if chance.random() >= _RAW:
            changed = self.change(data, chance) or self.change(chance.choice(self.seeds), chance)
            if 0 < len(changed) <= most:
                return atheris.Mutate(changed, most) if chance.random() < _BOTH else changed
        return atheris.Mutate(data, most)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def dictionary(path: Path, words: tuple[str, ...]) -> Path:
    """Words as libFuzzer reads them."""
    entries = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in words)
    path.write_text("".join(f'"{entry}"\n' for entry in entries if entry))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--inputs", type=int, required=True)
    arguments = parser.parse_args()
    reader = READERS[arguments.reader]
    folder: Path = arguments.folder
    kept = folder / "corpus"
    kept.mkdir(parents=True, exist_ok=True)
    # atheris instruments whole packages. Comparisons are not traced: they add words for the mutations of bytes, and the
    # dictionary holds the readers' words.
    left_out = set(result_caches.uninstrumented())
    with HookManager({"trainyard"}, left_out, enable_loader_override=True, trace_dataflow=False):
        for module in reader.modules:
            import_module(module)
    result_caches.install()
    fuzzing = Fuzzing(arguments.reader, reader, folder, arguments.inputs)
    options = [
        f"-max_len={reader.longest}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEMORY_MB}", "-verbosity=0",
        "-len_control=0", f"-artifact_prefix={folder}/", f"-dict={dictionary(folder / 'words', fuzzing.words)}",
    ]  # fmt: skip
    atheris.Setup(
        [sys.argv[0], *options, str(kept), str(corpus(arguments.reader)[0].parent)],
        fuzzing.once,
        custom_mutator=fuzzing.mutate,  # pyright: ignore[reportArgumentType]
    )
    gc.collect()
    gc.freeze()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
