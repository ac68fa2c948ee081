"""wrong_precision: matrix products in float32 on a device with 16-bit matrix units.

What it does: takes matmul, convolution and attention kernels that compute in float32 (by their name, else by the
launching op's inputs) on a device whose 16-bit peak is at least four times its float32 peak. The cost assumes a speedup
of half the ratio of the peaks.
Why it matters: float32 products do not use the matrix units at all (TF32 does, and is not counted here).
Example: ResNet-50 in float32 on a V100: 15.7 TFLOP/s at most, where float16 has 125.
Remedy: autocast to bfloat16 or allow TF32, if the device has them; else float16 with loss scaling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import describe_names, dominant_account, owned_ns_per_step, select_work
from trainyard.events import I64, OP
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.machine import find_device
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_FLOAT32_NAME = re.compile(r"sgemm|scudnn|simt_s|_simt_f32|cijk_\w+?_sb_|_s_b_|f32f32_f32f32_f32|convolve_sgemm", re.I)
_OTHER_FORMAT_NAME = re.compile(r"tf32|1688|16816|bf16|f16|half|hgemm|h884|s884|bfloat|xf32|fp8|e4m3", re.I)
_FLOAT32_TYPES = ("float", "float32", "c10::float")
_MIN_PEAK_RATIO = 4  # least ratio of peaks: below it, memory traffic limits most of the gain
_MEMORY_BOUND_DOUBT = 0.2  # that products are bound by memory, so that a lower precision gains less
_REACHED_FRACTION = 0.5  # fraction of the ratio of peaks that is reached


class WrongPrecision:
    rule = "wrong_precision"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time that float32 matrix products would save in a 16-bit dtype.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        device_ranks = [rank for rank in ranks or () if rank.on_device]
        ratio = _peak_ratio(device_ranks[0].events.device) if device_ranks else 0.0
        if ratio < _MIN_PEAK_RATIO:
            return ()
        rows_by_rank = [_select_float32_products(rank) for rank in device_ranks]
        busy_ns = owned_ns_per_step(device_ranks, rows_by_rank)
        saved_ns = busy_ns - round(busy_ns / (_REACHED_FRACTION * ratio))
        if not matters(ledger, saved_ns):
            return ()
        return finding(
            self.rule,
            ledger,
            dominant_account(device_ranks, rows_by_rank),
            saved_ns,
            f"Matrix products in float32, on a device that is {ratio:.0f} times as fast in 16 bits, waste",
            evidence=f"{units.show_time(busy_ns)} in float32, {describe_names(device_ranks, rows_by_rank)}",
            remedy=_remedy(device_ranks[0].events.device),
            confidence=confidence(_MEMORY_BOUND_DOUBT),
            change=row_change(self.rule, device_ranks, rows=rows_by_rank, remaining=1 / (_REACHED_FRACTION * ratio)),
        )


def _remedy(device: str) -> str:
    """The remedy by the number formats that the device's matrix units have."""
    specification = find_device(device)
    peak = specification.peak if specification else {}
    autocast = "Autocast to bfloat16" if "bfloat16" in peak else "Autocast to float16 with loss scaling"
    return f"{autocast}, or allow TF32." if "tf32" in peak else f"{autocast}."


def _peak_ratio(device: str) -> float:
    """16-bit peak over float32 peak of the device named in a trace; 0 if the device is unknown."""
    specification = find_device(device) if device else None
    if specification is None or "float32" not in specification.peak:
        return 0.0
    peak_16_bit = max(
        (specification.peak[dtype].value for dtype in ("bfloat16", "float16") if dtype in specification.peak),
        default=0.0,
    )
    return peak_16_bit / specification.peak["float32"].value


def _select_float32_products(booked: Booked) -> I64:
    """Rows of the matrix kernels in full steps that compute in float32, by their name, or if that does not show it, by
    the inputs of the op that launched them."""
    rows = select_work(booked, "compute", "matmul", "conv", "attention")
    is_float32 = booked.names(_FLOAT32_NAME.search)[booked.name[rows]]
    is_other_format = booked.names(_OTHER_FORMAT_NAME.search)[booked.name[rows]]
    # Only products: other kernels on the account (transposes, splits) do no matrix arithmetic.
    is_product = booked.names(lambda name: "gemm" in name.lower() or "cijk" in name.lower())[booked.name[rows]]
    unnamed = np.flatnonzero(is_product & ~is_float32 & ~is_other_format)
    is_float32[unnamed] = [_has_float32_inputs(booked, row) for row in booked.launcher[rows[unnamed]].tolist()]
    return rows[is_float32 & ~is_other_format]


def _has_float32_inputs(booked: Booked, row: int) -> bool:
    """Whether all matrix inputs are float32 of the innermost op with shapes around a launch (`row`: its host row)."""
    host = booked.events.host
    while row >= 0:
        if host.what[row] == OP and host.shape[row] >= 0:
            shape = booked.events.shapes[host.shape[row]]
            kinds = [kind.lower() for kind, dims in zip(shape.types, shape.dims) if len(dims) >= 2]
            return bool(kinds) and all(kind in _FLOAT32_TYPES for kind in kinds)
        row = int(host.parent[row])
    return False
