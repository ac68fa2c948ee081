import re

from hypothesis import given
from hypothesis import strategies as st

from trainyard.detect.finding_text import shorten


def test_names_that_differ_by_an_address_become_equal():
    names = [f"<ipython-input>(3): <function forward at 0x7f{digits}>" for digits in ("1c", "AA03")]
    assert [shorten(name) for name in names] == ["<ipython-input>(3): <function forward>"] * 2


@given(st.text(st.characters(codec="ascii"), max_size=200))
def test_long_names_keep_their_ends(name):
    short, kept = shorten(name), re.sub(" at 0x[0-9a-fA-F]+", "", name)
    assert len(short) <= 60
    assert short == kept or (kept.startswith(short[:30]) and kept.endswith(short[31:]))
