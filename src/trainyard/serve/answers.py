"""Responses: pages, documents, redirections and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from trainyard.error_report import ErrorReport, report_of
from trainyard.errors import (
    BadFile,
    BadInput,
    EnvironmentFailed,
    NotEnoughEvidence,
    TrainyardError,
    UnknownName,
    WrongRunState,
)
from trainyard.printable import encode_json, printable_json
from trainyard.serve.markup import Html
from trainyard.serve.pages.error_page import error_page

REPORT_POLICY = "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The policy for a report, whose own document allows exactly its script and style, by their digests."""
_STATUSES: tuple[tuple[type[TrainyardError], int], ...] = (
    (UnknownName, 404),
    (WrongRunState, 409),
    (BadFile, 409),
    (NotEnoughEvidence, 409),
    (BadInput, 400),
    (EnvironmentFailed, 503),
)
"""Status of an error: that of the first class that it is an instance of, else 500."""


def page(content: Html, status: int = 200) -> Response:
    """A page of the server's own."""
    return Response(content.encode("utf-8", "replace"), status, media_type="text/html")


def report_page(content: bytes) -> Response:
    """A self-contained report."""
    return Response(content, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})


def document(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A document as JSON, the same as the commands print with --json."""
    return json_text(json_of(value), headers)


def json_of(value: Any) -> bytes:
    """A document as the commands print it with --json."""
    return printable_json(encode_json(value).decode()).encode()


def json_text(content: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """An encoded document."""
    return Response(content, media_type="application/json", headers=headers)


def redirect(target: str) -> RedirectResponse:
    """Sends the browser to another address of this server."""
    return RedirectResponse(quote(target, safe="/?&=%#+:,@!$'()*;~[]"), 303)


def wants_json(scope: Scope) -> bool:
    """Whether the request is for a document."""
    return scope["path"].startswith("/api/")


def error_response(
    report: ErrorReport, status: int, as_json: bool, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a document or a page."""
    content = json_of(report) if as_json else error_page(report, status).encode("utf-8", "replace")
    return Response(content, status, headers, "application/json" if as_json else "text/html")


def response_of(error: TrainyardError, as_json: bool) -> Response:
    """The response to a request that raised an error."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return error_response(report_of(error), status, as_json)
