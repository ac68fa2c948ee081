"""Philox-4x32-10, a counter-based random number generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
2, 3").

A block of four random 32-bit words is a function of a 128-bit counter and a 64-bit key, without state, so that any
rank computes any block. Uses integer operations of torch that are exact on every device.
"""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

Word: TypeAlias = Tensor | int
"""A 32-bit word for each block: an int64 tensor of values in [0, 2**32), or an int if all blocks have the same."""
Words: TypeAlias = tuple[Word, Word, Word, Word]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(counter: Words, key: int) -> Words:
    """The random words of each block. `counter`: its four words, the least significant first, of which tensors have
    equal shapes; `key`: 64 bits. Returns four words of that shape."""
    word0, word1, word2, word3 = counter
    key0, key1 = key & _MASK, key >> 32 & _MASK
    for _ in range(_ROUNDS):
        product0, product1 = word0 * _MULTIPLIERS[0], word2 * _MULTIPLIERS[1]
        word0, word1 = _mix(product1, word1, key0), _low(product1)
        word2, word3 = _mix(product0, word3, key1), _low(product0)
        key0, key1 = (key0 + _KEY_INCREMENTS[0]) & _MASK, (key1 + _KEY_INCREMENTS[1]) & _MASK
    return word0, word1 & _MASK, word2, word3 & _MASK


def _mix(product: Word, word: Word, key: int) -> Word:
    """The high 32 bits of the 64-bit `product`, combined with the low 32 bits of `word` and with `key` by exclusive or.

    A product of tensors wraps to a negative int64 and is shifted arithmetically, which the mask undoes.
    """
    mixed = product >> 32  # a new tensor, which the next operations change in place
    mixed ^= word
    mixed ^= key
    mixed &= _MASK
    return mixed


def _low(product: Word) -> Word:
    """The low 32 bits of a product. In a tensor, the high bits remain: `_mix` masks them, which saves an operation."""
    return product & _MASK if isinstance(product, int) else product
