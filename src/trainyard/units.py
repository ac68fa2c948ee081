"""Parsing and formatting of times, sizes, rates and counts.

Times are integer nanoseconds, sizes integer bytes, everywhere. `ns_from_us` is exact: a stamp such
as `4458676416788.066` (µs) does not survive a float64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, localcontext
from itertools import groupby
from math import gcd, isqrt

from trainyard.errors import BadInput

_BYTES_PER_UNIT = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_QUANTITY = re.compile(r"\s*((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?)\s*([A-Za-zµ]+)\s*\Z")
_INT64 = 2**63
_MOST_DIVISORS = 16


def ns_from_us(stamp: str | bytes) -> int:
    """Exact integer nanoseconds of a decimal microsecond stamp; digits past the nanosecond round down.

    Raises `ValueError` for anything but a decimal number whose nanoseconds fit 64 bits.
    """
    text = stamp.decode("ascii") if isinstance(stamp, bytes) else stamp
    whole_us, point, fraction = text.partition(".")
    if len(whole_us) <= 16 and whole_us.isdecimal() and (not point or fraction.isdecimal()):  # the usual form, fast
        ns = int(whole_us) * 1000 + (int(fraction[:3].ljust(3, "0")) if fraction else 0)
    else:
        ns = _ns_from_decimal_us(text)
    if not -_INT64 <= ns < _INT64:
        raise ValueError(f"{text!r} µs does not fit into 64 bits of nanoseconds")
    return ns


def _ns_from_decimal_us(text: str) -> int:
    """Nanoseconds, rounded down, of a microsecond stamp with a sign or an exponent. The magnitude is checked first:
    `1e999999` would become a million digits. Raises `ValueError` for anything else."""
    try:
        value = Decimal(text)
        if not value.is_finite() or value.adjusted() > 16:
            raise ValueError
        with localcontext(prec=len(text) + 4):  # enough digits for the product to be exact
            return int((value * 1000).to_integral_value("ROUND_FLOOR"))
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"{text[:40]!r} is not a time in microseconds") from error


def is_whole_number(text: str) -> bool:
    """Whether a text is a whole number of at most 9 decimal digits, without a sign."""
    return text.isascii() and text.isdecimal() and len(text) < 10


def parse_size(text: str) -> int:
    """`"80 GB"` -> 80_000_000_000 bytes. Raises `BadInput`."""
    match = _QUANTITY.match(text)
    if match is None or match[2] not in _BYTES_PER_UNIT:
        raise BadInput(f"{text!r} is not a size.", f"Write a number and one of {', '.join(_BYTES_PER_UNIT)}.")
    return int(Decimal(match[1].replace(",", "")) * _BYTES_PER_UNIT[match[2]])


def _format_scaled(value: float, units: list[tuple[float, str]], digits: int) -> str:
    """Formats a value in the first of `units`, (scale, unit) in descending order, whose scale it reaches; in the
    last one if it is below all."""
    for scale, unit in units:
        if abs(value) >= scale:
            return f"{value / scale:,.{digits}f} {unit}"
    scale, unit = units[-1]
    return f"{value / scale:,.{digits}f} {unit}"


def show_time(ns: float, digits: int = 1) -> str:
    """`418_000_000` -> `"418.0 ms"`; integers below a microsecond stay whole."""
    if abs(ns) < 1000:
        return f"{ns:.0f} ns"
    # Seconds from ten up: below, milliseconds keep the digits a reader compares.
    steps = [(1e9, "s")] if abs(ns) >= 1e10 else [(1e6, "ms"), (1e3, "µs")]
    return _format_scaled(float(ns), steps, digits)


_HOURS_PER_DAY, SECONDS_PER_DAY = 24, 86_400
_LEAST_DAYS, _LEAST_HOURS, _LEAST_MINUTES = 2, 2, 2
"""Shortest durations that are shown in days, hours and minutes."""
_LEAST_WHOLE = 100
"""Least dollars and kWh that are shown without decimals."""


def duration_unit(days: float) -> tuple[int, str]:
    """(units in a day, unit) in which a duration is shown: days, h, min or s."""
    if days >= _LEAST_DAYS:
        return 1, "days"
    if days * _HOURS_PER_DAY >= _LEAST_HOURS:
        return _HOURS_PER_DAY, "h"
    minutes_per_day = SECONDS_PER_DAY // 60
    return (minutes_per_day, "min") if days * minutes_per_day >= _LEAST_MINUTES else (SECONDS_PER_DAY, "s")


def decimals_of_amount(amount: float | None) -> int:
    """Decimals of an amount of dollars or kWh: two of a small one."""
    return 0 if amount is None or amount >= _LEAST_WHOLE else 2


def show_dollars(amount: float) -> str:
    """`1_234.5` -> `"$1,234"`; a small amount has cents, and `<$0.01` is one that would round to 0."""
    return "<$0.01" if 0 < amount < 0.005 else f"${amount:,.{decimals_of_amount(amount)}f}"


def show_ns(ns: int) -> str:
    """`215769424` -> `"215,769,424"`: every digit, grouped."""
    return f"{ns:,}"


def show_size(size: float, digits: int = 1) -> str:
    """Bytes in binary units: `66_000_000_000` -> `"61.5 GiB"`."""
    if abs(size) < 1024:
        return f"{size:.0f} B"
    return _format_scaled(float(size), [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")], digits)


def show_gigabytes(size: float) -> str:
    """Bytes of device memory, in decimal units as in tables of plans: `66_000_000_000` -> `"66.0 GB"`."""
    return show_rate(size, "B")


def show_count(count: float, digits: int = 1) -> str:
    """`19_600` -> `"19.6 k"`; below a thousand the integer itself."""
    if abs(count) < 1000:
        return f"{count:.0f}"
    return _format_scaled(float(count), [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")], digits)


def show_rate(per_second: float, unit: str, digits: int = 1) -> str:
    """`show_rate(3.1e12, "FLOP/s")` -> `"3.1 TFLOP/s"`."""
    if abs(per_second) < 1000:
        return f"{per_second:.{digits}f} {unit}"
    steps = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
    return _format_scaled(float(per_second), steps, digits) + unit


def show_share(part: float, whole: float, digits: int = 1) -> str:
    """`"15.6 %"`; a dash if `whole` is 0, `"<0.1 %"` for a positive part that rounds to nothing."""
    if not whole:
        return "–"
    shown = f"{100 * part / whole:z.{digits}f} %"
    rounds_to_nothing = part / whole > 0 and float(shown[:-2].replace(",", "")) == 0  # without the " %"
    return f"<{10**-digits:.{digits}f} %" if rounds_to_nothing else shown


def counted(count: int, noun: str, plural: str = "") -> str:
    """`counted(1, "table")` -> `"1 table"`, `counted(2, "table")` -> `"2 tables"`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(items: Sequence[object], max_items: int, count: int | None = None, between: str = ", ") -> str:
    """Joins the first `max_items` items by `between` and adds the number of the others: `a, b and 3 more`. `count`: the
    total number, if `items` is only the beginning of a list."""
    shown = between.join(str(item) for item in items[:max_items])
    more = (len(items) if count is None else count) - max_items
    return shown if more <= 0 else f"{shown} and {more:,} more"


def show_divisors(numbers: Sequence[int]) -> str:
    """The common divisors of positive numbers as text: `1, 2, 4`; at most `_MOST_DIVISORS` are listed."""
    common = gcd(*numbers)
    small = [number for number in range(1, isqrt(common) + 1) if common % number == 0]
    return listed(sorted({*small, *(common // number for number in small)}), _MOST_DIVISORS)


def show_ranks(numbers: Sequence[int]) -> str:
    """Ranks as text, by `show_ranges`: `rank 1`, `ranks 0-7, 12`."""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {show_ranges(numbers)}"


def show_ranges(numbers: Sequence[int], most: int = 8) -> str:
    """Distinct numbers as text with ranges, such as `0-7, 12`; at most `most` ranges are listed."""
    ranges: list[str] = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        ranges.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return listed(ranges, most)
