"""Alarms of `numerics kernels` in trainings that are right: `python -m validation.kernels`.

Checks the first step of ten trainings (models of the numerics suite and an example) and prints operations, elements and
alarms of each. An operation that exceeds its bound is a false alarm, or a fault of torch: read its element.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard import api
from validation.numerics.fault import SCRIPTS

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "numerics" / "train.py")
BENIGN = str(SCRIPTS / "benign_training.py")
TRAININGS: tuple[tuple[str, ...], ...] = (
    (EXAMPLE,),
    (EXAMPLE, "--bfloat16"),
    (BENIGN, "transformer", "--attention", "flash"),
    (BENIGN, "transformer", "--dtype", "bfloat16"),
    (BENIGN, "conv_net", "--channels-last"),
    (BENIGN, "conv_net", "--optimizer", "fused"),
    (BENIGN, "unet", "--attention", "flash"),
    (BENIGN, "recurrent"),
    (BENIGN, "recurrent", "--dtype", "bfloat16"),
    (BENIGN, "recommender", "--optimizer", "foreach"),
)


def main() -> int:
    calls = elements = undetectable = alarms = 0
    for words in TRAININGS:
        check = api.check_kernels([sys.executable, *words], steps="0-0")
        of_calls, of_elements, of_undetectable = (
            sum(getattr(operation, name) for operation in check.operations)
            for name in ("calls", "elements", "undetectable")
        )
        calls, elements, undetectable = calls + of_calls, elements + of_elements, undetectable + of_undetectable
        alarms += len(check.exceeding)
        title = " ".join((Path(words[0]).name, *words[1:]))
        names = ", ".join(operation.operation for operation in check.exceeding)
        print(
            f"{title}: {of_calls:,} calls, {of_elements:,} elements, {len(check.exceeding)} alarms {names}", flush=True
        )
    share = 100 * undetectable / max(1, elements)
    print(f"{calls:,} calls, {elements:,} elements, {share:.1f} % undetectable, {alarms} alarms")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
