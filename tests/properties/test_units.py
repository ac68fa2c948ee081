"""Units: timestamps are exact, and formatted values read back to their printed digits."""

from contextlib import suppress
from decimal import Decimal, localcontext
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard import units
from trainyard.errors import BadInput


def floor_ns(text: str) -> int:
    """The oracle: decimal arithmetic with enough precision for every digit."""
    with localcontext(prec=200):
        return int((Decimal(text) * 1000).to_integral_value("ROUND_FLOOR"))


@given(st.from_regex(r"-?[0-9]{1,15}(\.[0-9]{1,12})?", fullmatch=True))
@example("4458676416788.066")
@example("0.0009")
@example("-0.0001")
def test_timestamps_are_exact(text):
    assert units.ns_from_us(text) == units.ns_from_us(text.encode()) == floor_ns(text)


@given(st.from_regex(r"[+-]?[0-9]{1,4}\.?[0-9]{0,30}[eE][+-]?[0-9]{1,2}", fullmatch=True))
def test_timestamps_with_exponents_are_exact_or_refused(text):
    exact = floor_ns(text)
    try:
        ns = units.ns_from_us(text)
    except ValueError:
        assert not -(2**63) <= exact < 2**63 or Decimal(text) == 0
    else:
        assert ns == exact


@given(
    st.text() | st.binary() | st.sampled_from(["nan", "-inf", "1e999999", "1e999999999", "9" * 5000, "²", "0x1", ""])
)
def test_invalid_timestamps_raise_value_error(stamp):
    with suppress(ValueError):
        assert abs(units.ns_from_us(stamp)) <= 2**63


@given(st.integers(0, 10**16))
def test_show_time_is_accurate_to_the_last_digit(ns):
    number, unit = units.show_time(ns, digits=3).split()
    scale = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9}[unit]
    assert abs(Fraction(number.replace(",", "")) * scale - ns) * 1000 <= (scale if scale > 1 else 0)


@given(st.integers(0, 2**60))
def test_show_size_round_trip(size):
    shown = units.show_size(size, digits=3)
    unit = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[shown.split()[1]]
    assert abs(units.parse_size(shown) - size) * 1000 <= unit if unit > 1 else units.parse_size(shown) == size


@given(st.integers(-(2**63), 2**63))
def test_show_ns_shows_every_digit(ns):
    assert int(units.show_ns(ns).replace(",", "")) == ns


@given(st.text().filter(lambda text: not any(character.isdigit() for character in text)))
@example("1,5 ms")
@example("12")
@example("-1 ms")
@example("1 parsec")
@example("1e3 s")
def test_other_text_is_not_a_size(text):
    with refused(BadInput, repr(text), "MiB"):
        units.parse_size(text)


def test_share_that_rounds_to_zero_has_no_sign():
    assert units.show_share(-1, 10**9) == "0.0 %"
    assert units.show_share(-1, 2) == "-50.0 %"


@given(st.sets(st.integers(0, 40)))
def test_shown_ranks_name_every_rank_once(ranks):
    text = units.show_ranges(sorted(ranks), most=99)
    listed = set()
    for item in filter(None, text.split(", ")):
        first, _, last = item.partition("-")
        listed |= set(range(int(first), int(last or first) + 1))
    assert listed == ranks
    assert units.show_ranks(sorted(ranks)).startswith("rank " if len(ranks) == 1 else "ranks ")
