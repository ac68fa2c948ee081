"""wrong_precision: matrix products in float32 on a device with 16-bit matrix units.

What it does: takes matmul, convolution and attention kernels that compute in float32 (by their name, else by the
launching op's inputs) on a device whose 16-bit peak is at least four times its float32 peak. The cost assumes a speedup
of half the ratio of the peaks.
Why it matters: float32 products do not use the matrix units at all (TF32 does, and is not counted here).
Example: ResNet-50 in float32 on a V100: 15.7 TFLOP/s at most, where float16 has 125.
Remedy: autocast to bfloat16 (float16 with loss scaling before Ampere), or allow TF32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.select_events import account_of, commonest, owned, work
from trainyard.events import I64, OP
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.machine import find_device
from trainyard.record import Run

_SINGLE = re.compile(r"sgemm|scudnn|simt_s|_simt_f32|cijk_\w+?_sb_|_s_b_|f32f32_f32f32_f32|convolve_sgemm", re.I)
_OTHER = re.compile(r"tf32|1688|16816|bf16|f16|half|hgemm|h884|s884|bfloat|xf32|fp8|e4m3", re.I)
_FLOAT = ("float", "float32", "c10::float")
_WORTH = 4  # least ratio of peaks: below it, memory traffic limits most of the gain
_REACHED = 0.5  # fraction of the ratio of peaks that is reached


class WrongPrecision:
    rule = "wrong_precision"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        ranks = [rank for rank in events or () if rank.on_device]
        ratio = _ratio(ranks[0].events.device) if ranks else 0.0
        if ratio < _WORTH:
            return ()
        rows = [_single(rank) for rank in ranks]
        busy = owned(ranks, rows)
        saved = busy - round(busy / (_REACHED * ratio))
        if not matters(ledger, saved):
            return ()
        return finding(
            self.rule,
            ledger,
            account_of(ranks, rows),
            saved,
            f"Matrix products in float32, on a device {ratio:.0f} times as fast in 16 bits, waste",
            evidence=f"{units.show_time(busy)} in float32, mostly {commonest(ranks, rows)}",
            remedy="Autocast to bfloat16 (before Ampere float16 with loss scaling), or allow TF32.",
            # The gain from lower precision depends on how far each product is bound by memory.
            sure=0.7,
        )


def _ratio(device: str) -> float:
    """16-bit peak over float32 peak of the device named in a trace; 0 if the device is unknown."""
    known = find_device(device) if device else None
    if known is None or "float32" not in known.peak:
        return 0.0
    half = max((known.peak[dtype].value for dtype in ("bfloat16", "float16") if dtype in known.peak), default=0.0)
    return half / known.peak["float32"].value


def _single(booked: Booked) -> I64:
    rows = work(booked, "compute", "matmul", "conv", "attention")
    named_single = booked.names(_SINGLE.search)[booked.name[rows]]
    named_other = booked.names(_OTHER.search)[booked.name[rows]]
    # Only products: other kernels on the account (transposes, splits) do no matrix arithmetic.
    product = booked.names(lambda name: "gemm" in name.lower() or "cijk" in name.lower())[booked.name[rows]]
    unnamed = np.flatnonzero(product & ~named_single & ~named_other)
    named_single[unnamed] = [_takes_float(booked, row) for row in booked.launcher[rows[unnamed]].tolist()]
    return rows[named_single & ~named_other]


def _takes_float(booked: Booked, row: int) -> bool:
    """Whether all matrix inputs of the innermost op with shapes around a launch are float32."""
    host = booked.events.host
    while row >= 0:
        if host.what[row] == OP and host.shape[row] >= 0:
            shape = booked.events.shapes[host.shape[row]]
            kinds = [kind.lower() for kind, dims in zip(shape.types, shape.dims) if len(dims) >= 2]
            return bool(kinds) and all(kind in _FLOAT for kind in kinds)
        row = int(host.parent[row])
    return False
