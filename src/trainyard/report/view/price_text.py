"""The price of a finding as text, the same in every output."""

from __future__ import annotations

from trainyard import units, words
from trainyard.change import WITHOUT
from trainyard.finding import Finding

_NS_OF_UNIT = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


def show_interval(interval_ns: tuple[int, int]) -> str:
    """The interval in one unit, that of its larger bound: `80 % interval 38.0 to 42.0 ms`; `0 ns in every step` if both
    bounds are 0."""
    if not any(interval_ns):
        return "0 ns in every step"
    unit = units.show_time(max(map(abs, interval_ns))).rsplit(" ", 1)[1]
    low, high = (f"{ns / _NS_OF_UNIT[unit]:z.1f}" for ns in interval_ns)
    return f"80 % interval {low} to {high} {unit}"


def show_price(finding: Finding) -> str:
    """The price of a finding: `at most 5.2 ms`, `recovered 4.1 ms`, or `not recoverable`."""
    label = words.PRICES[finding.priced].label
    return label if finding.priced == "none" else f"{label} {units.show_time(finding.cost_ns)}"


def explain_price(finding: Finding) -> str:
    """How the price was computed: its interval if a replay over several steps gave it, else the meaning of its word."""
    if finding.priced != "replayed":
        return words.PRICES[finding.priced].means.removesuffix(".")
    replayed = f"recovered in a replay{_describe_change(finding)}"
    if finding.interval_ns is None:
        return f"{replayed} of one step, which gives no interval"
    return f"{replayed}, {show_interval(finding.interval_ns)}"


def _describe_change(finding: Finding) -> str:
    """The change that a replay applied, as the command what-if takes it: ` (rank:7=typical)`. Empty if it is named like
    the rule of the finding."""
    if finding.change is None or finding.change.text.startswith(WITHOUT):
        return ""
    beyond = f" in addition to {finding.beyond.text}" if finding.beyond else ""
    return f" ({finding.change.text}{beyond})"
