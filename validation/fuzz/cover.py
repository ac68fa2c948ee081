"""Which lines and branches of a reader's own modules its corpus reaches: `python -m validation.fuzz.cover READER`.

Prints JSON. `--choose FOLDER` also picks, from the committed corpus and from what fuzzing found, a few small inputs
that reach as much, and writes them to the folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import coverage

CORPUS = Path(__file__).parent / "corpus"
_MOST_FILES, _MOST_BYTES = 24, 4096


def replay(name: str, inputs: list[Path]) -> coverage.Coverage:
    """Every input is a context of its own. Nothing of trainyard may be imported before: definitions are lines too."""
    measured = coverage.Coverage(branch=True, data_file=None, config_file=False, source_pkgs=["trainyard"])
    measured.start()
    from trainyard.errors import BadInput
    from validation.fuzz.readers import READERS

    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        for path in inputs:
            measured.switch_context(str(path))
            try:
                reader.read(path.read_bytes(), Path(folder))
            except BadInput:
                pass
            except Exception as error:
                sys.stderr.write(f"{path}: {type(error).__name__}: {error}\n")
    measured.stop()
    return measured


def files(name: str) -> list[str]:
    """The reader's own modules."""
    from validation.fuzz.readers import READERS

    return [str(import_module(module).__file__) for module in READERS[name].modules]


def totals(measured: coverage.Coverage, own: list[str]) -> dict[str, tuple[int, int]]:
    """Covered and all lines and branches."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        measured.json_report(outfile=file.name, include=own)
        summary = json.loads(Path(file.name).read_bytes())["totals"]
    return {
        "lines": (summary["covered_lines"], summary["num_statements"]),
        "branches": (summary["covered_branches"], summary["num_branches"]),
    }


def choose(measured: coverage.Coverage, own: list[str], inputs: list[Path]) -> list[Path]:
    """Greedily, the input with the most new arcs first; of those with as many, the shortest."""
    data = measured.get_data()
    arcs: dict[Path, set[tuple[str, int, int]]] = {}
    for path in inputs:
        if path.stat().st_size <= _MOST_BYTES:
            data.set_query_contexts([f"^{path}$"])
            arcs[path] = {(file, *arc) for file in own for arc in data.arcs(file) or ()}
    data.set_query_contexts(None)
    chosen: list[Path] = []
    reached: set[tuple[str, int, int]] = set()
    while arcs and len(chosen) < _MOST_FILES:
        best = max(arcs, key=lambda path: (len(arcs[path] - reached), -path.stat().st_size))
        if not arcs[best] - reached:
            break
        reached |= arcs.pop(best)
        chosen.append(best)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader")
    parser.add_argument("--found", type=Path, help="a folder of more inputs")
    parser.add_argument("--choose", type=Path)
    options = parser.parse_args()
    committed = sorted((CORPUS / options.reader).iterdir())
    more = sorted(options.found.iterdir()) if options.found and options.found.is_dir() else []
    measured = replay(options.reader, [*committed, *more])
    own = files(options.reader)
    print(json.dumps(totals(measured, own)))
    if options.choose:
        options.choose.mkdir(parents=True, exist_ok=True)
        for path in choose(measured, own, [*committed, *more]):
            if path not in committed:
                (options.choose / path.name[:16]).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
