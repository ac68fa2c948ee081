"""Printed names show every character, whatever they contain, and printable JSON decodes to the same value."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from trainyard.printable import encode_json, printable, printable_json, printable_tree

INVISIBLE = (
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"  # bidirectional controls
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\u3164"  # no width, or no ink
    "\x00\x1b\x7f\x85\x9b\ud800"
)
TEXTS = st.text(st.one_of(st.characters(exclude_categories=()), st.sampled_from(INVISIBLE)))
WHOLE = st.text(st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from(INVISIBLE[:-1])))


def tree(texts):
    return st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner))


@given(TEXTS)
def test_printed_text_has_no_invisible_character(text):
    shown = printable(text)
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not set(shown) & set(INVISIBLE)
    shown.encode()
    assert printable(shown) == shown


def test_invisible_characters_are_shown_by_code_point():
    assert printable(INVISIBLE) == "".join(f"⟨U+{ord(char):04X}⟩" for char in INVISIBLE)
    assert printable("a\nb\tc", keep="\n") == "a\nb⟨U+0009⟩c"
    assert printable("naïve 漢字 — 12 µs ❤️") == "naïve 漢字 — 12 µs ❤️"


@given(tree(WHOLE))
def test_printable_json_decodes_to_the_same(value):
    text = printable_json(encode_json(value).decode())
    assert text.isprintable()
    assert json.loads(text) == value


@given(tree(TEXTS))
def test_any_tree_of_texts_can_be_written(value):
    assert printable_json(encode_json(value).decode()).isprintable()
    json.dumps(printable_tree(value), ensure_ascii=False).encode()
