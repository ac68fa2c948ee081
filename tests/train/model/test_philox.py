"""Philox-4x32-10 against the published known answers and an implementation by Python's integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
WORDS = st.integers(0, 2**32 - 1)


def reference(counter, key):
    """The algorithm on Python's integers, from section 3.2 of the paper."""
    for number in range(10):
        keys = [(part + number * step) % 2**32 for part, step in zip(key, (0x9E3779B9, 0xBB67AE85))]
        high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = (high1 ^ counter[1] ^ keys[0], low1, high0 ^ counter[3] ^ keys[1], low0)
    return counter


# The known answers of Random123 1.14 (tests/kat_vectors): counter, key, words.
KNOWN = [
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.philox import philox

    assert reference(counter, key) == words
    tensors = tuple(torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox(tensors, key[0] | key[1] << 32)) == words


@given(
    st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), min_size=1, max_size=5), WORDS, WORDS, st.sets(st.integers(1, 3))
)
def test_words_equal_the_reference(counters, key0, key1, shared):
    """`shared`: the counter words that are ints, equal for all blocks."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.philox import philox

    columns = list(zip(*counters))
    counter = tuple(column[0] if number in shared else torch.tensor(column) for number, column in enumerate(columns))
    expected = [
        reference(tuple(counters[0][n] if n in shared else block[n] for n in range(4)), (key0, key1))
        for block in counters
    ]
    words = philox(counter, key0 | key1 << 32)
    assert [tuple(row) for row in zip(*(word.tolist() for word in words))] == expected
