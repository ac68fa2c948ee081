"""Fixtures of the tests of parts."""

from tests.run.parts.two_hosts import shifted_clock

__all__ = ["shifted_clock"]
