"""The categories (`cat`) of Kineto's events: which are host spans, which are device work, and which hold neither.

Kineto's own categories are listed in libkineto's ActivityType.cpp. Forks for other devices follow its pattern:
`xpu_runtime`, `privateuse1_driver`, `mlu_memcpy`. `native/scan.c` has the same rules.
"""

from __future__ import annotations

from trainyard.events import CALL, COPY, DRAWN, KERNEL, MEMSET, NOTE, OP, PYTHON

UNKNOWN_WORK = DRAWN + 1
"""Kind of a device row of an unknown category, until it is known whether it is work."""
FIRST_DEVICE_CODE, STREAM_WAIT_CODE, NO_WORK = 10, 20, -1
"""`code_of_category` returns a kind of host span, `FIRST_DEVICE_CODE` plus a kind of device work, `STREAM_WAIT_CODE` or
`NO_WORK`."""

_HOST_KINDS = {
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": NOTE,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "python_function": PYTHON,
}
_HOST_SUFFIXES = ("_runtime", "_driver")
_DEVICE_KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": MEMSET, "memset": MEMSET,
           "gpu_user_annotation": DRAWN, "mtia_ccp_events": KERNEL}  # fmt: skip
_DEVICE_SUFFIXES = {"_kernel": KERNEL, "_memcpy": COPY, "_memset": MEMSET, "_user_annotation": DRAWN}
_WITHOUT_WORK = frozenset(
    {
        "trace",
        "overhead",
        "external_correlation",
        "cpu_instant_event",
        "cuda_event",
        "cuda_profiler_range",
        "mtia_counters",
        "xpu_scope_profiler",
        "__metadata",
        "ac2g",
        "fwdbwd",
        "async_cpu_to_gpu",
    }
)
_DEVICE_ONLY = ("hpu_op", "mtia_", "glow_", "privateuse1_", "xpu_", "collective_comm")
"""Beginnings of categories that Kineto writes only if there is an accelerator."""


def code_of_category(category: str | None) -> int:
    """The code of a category, in any letter case: a kind of host span (`events.OP`, `CALL`, `NOTE`, `PYTHON`),
    `FIRST_DEVICE_CODE` plus a kind of device work (`UNKNOWN_WORK` if the category is not known), `STREAM_WAIT_CODE` for
    synchronisation between streams, or `NO_WORK` for events that are neither."""
    # Only ASCII letters are lowered, as in the C code.
    text = (category or "").lower() if (category or "").isascii() else category or ""
    if text in _HOST_KINDS:
        return _HOST_KINDS[text]
    if _ends_with(text, _HOST_SUFFIXES):
        return CALL
    if text in _DEVICE_KINDS:
        return FIRST_DEVICE_CODE + _DEVICE_KINDS[text]
    if text == "cuda_sync":
        return STREAM_WAIT_CODE
    for suffix, kind in _DEVICE_SUFFIXES.items():
        if _ends_with(text, (suffix,)):
            return FIRST_DEVICE_CODE + kind
    return NO_WORK if text in _WITHOUT_WORK or _ends_with(text, ("_sync",)) else FIRST_DEVICE_CODE + UNKNOWN_WORK


def names_accelerator(category: str) -> bool:
    """Whether Kineto writes the category only if there is an accelerator."""
    return category.lower().startswith(_DEVICE_ONLY)


def _ends_with(text: str, suffixes: tuple[str, ...]) -> bool:
    """Whether the text ends with one of the suffixes and is longer than it."""
    return any(text.endswith(suffix) and len(text) > len(suffix) for suffix in suffixes)
