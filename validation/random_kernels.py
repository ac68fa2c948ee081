"""Alarms of the bounds of single operations in random cases of right kernels: `python -m validation.random_kernels
[--cases 60] [--seed 0]` prints each, and their number. Kernels, and with them alarms, depend on the processor."""

from __future__ import annotations

import argparse

import numpy as np
import torch

from tests.numerics.kernels.operations import KINDS, OPERATIONS, Case, Inputs, check_all

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SCALES = (1e-3, 1.0, 1e3)


def draw_case(rng: np.random.Generator) -> Case:
    """A case with the ranges of `tests/numerics/kernels/test_check_operation.py`."""
    return Case(
        dtype=_DTYPES[rng.integers(len(_DTYPES))],
        scale=_SCALES[rng.integers(len(_SCALES))],
        kind=KINDS[rng.integers(len(KINDS))],
        size=int(rng.integers(2, 61)),
        seed=int(rng.integers(1 << 30)),
        channels_last=bool(rng.integers(2)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=60, help="of each group of operations")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    checked = alarms = 0
    for name, run in sorted(OPERATIONS.items()):
        for case in (draw_case(rng) for _ in range(options.cases)):
            checks = check_all(lambda run=run, case=case: run(Inputs(case)))
            checked, alarms = checked + len(checks.checked), alarms + len(checks.exceeding)
            for operation, check in checks.exceeding:
                print(f"{name}: {operation}, {check.ratio:.2f} times its bound, {case}", flush=True)
    print(f"{alarms} alarms in {checked:,} checks; {torch.backends.cpu.get_cpu_capability()}")


if __name__ == "__main__":
    main()
