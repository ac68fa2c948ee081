"""The parameters of a request."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from trainyard.errors import BadInput

_MOST_PARAMETER = 200
"""Characters of a parameter."""


def read_parameters(request: Request) -> Mapping[str, str]:
    """The parameters of a request. Raises `BadInput` for one that is too long or given twice."""
    items = request.query_params.multi_items()
    for name, value in items:
        if len(name) > _MOST_PARAMETER or len(value) > _MOST_PARAMETER:
            raise BadInput(f"The parameter {name[:40]!r} has more than {_MOST_PARAMETER} characters.")
    query = dict(items)
    if len(query) < len(items):
        raise BadInput("A parameter is given twice.")
    return query


def required(query: Mapping[str, str], name: str) -> str:
    """A parameter that must be given. Raises `BadInput`."""
    if not query.get(name):
        raise BadInput(f"The parameter {name!r} is missing.")
    return query[name]
