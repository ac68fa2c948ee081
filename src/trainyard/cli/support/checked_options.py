"""A command that refuses options without a value and options given twice, of which click takes the last."""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from trainyard.errors import BadInput


class CheckedOptions(click.Command):
    """A command whose options are given once, unless they are repeatable or have the same value, and are not empty."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does. Raises `BadInput` for an empty option, or one with two values."""
        words = list(args)  # click removes those that it has parsed
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            self._check(ctx, words)
        return rest

    def _check(self, ctx: click.Context, args: list[str]) -> None:
        values = self._values(ctx, args)
        for option in self.params:
            given = values.get(option.name or "") if isinstance(option, click.Option) else None
            flag = option.opts[0]
            if given and any(isinstance(value, str) and not value.strip() for value in given):
                raise BadInput(f"{flag} has an empty value.", f"Pass a value, or leave out {flag}.")
            if given and not option.multiple and any(value != given[0] for value in given):
                shown = " and as ".join(dict.fromkeys(str(value) for value in given))
                raise BadInput(f"{flag} is given as {shown}.", "Pass it once.")

    def _values(self, ctx: click.Context, args: list[str]) -> dict[str, Any]:
        """All values of each option on the command line: name -> values as text, or as True and False."""
        collecting = copy(self)
        collecting.params = [_repeatable(param) for param in self.params]
        return collecting.make_parser(ctx).parse_args(args)[0]


def _repeatable(param: click.Parameter) -> click.Parameter:
    """The option, whose values are collected in a list; an argument as it is."""
    if not isinstance(param, click.Option):
        return param
    option = copy(param)
    option.multiple = True
    return option
