"""Coverage-guided fuzzing of all readers with atheris: `python -m tests.fuzz.fuzz_trace [OPTIONS] [CORPUS]`.

Takes libFuzzer's options, stops at the first fault and writes the bytes that showed it. `-runs=0` only tries the
seeds and the corpus; `-max_total_time=300` looks for five minutes. atheris is in no extra of ours: install it beside
trainyard.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["trainyard"]):
    from tests.fuzz import target
    from trainyard import plugins

    plugins.load_all("readers")
    plugins.load_all("vendors")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        corpus = place / "seeds"
        corpus.mkdir()
        for number, data in enumerate(target.seeds(place).values()):
            (corpus / f"seed{number}").write_bytes(data)
        # The first folder is where libFuzzer keeps what it finds, so ours is the last.
        atheris.Setup([*sys.argv, "-max_len=60000", "-timeout=20", str(corpus)], lambda data: target.check(data, place))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
