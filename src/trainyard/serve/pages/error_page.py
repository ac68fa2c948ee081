"""The page of an error."""

from __future__ import annotations

from http import HTTPStatus

from trainyard.error_report import ErrorReport
from trainyard.serve.markup import Html, element
from trainyard.serve.pages.shell import hero, shell


def error_page(report: ErrorReport, status: int) -> Html:
    """A page with the message, its next step and the status."""
    phrase = HTTPStatus(status).phrase
    heading = report.message[:1].upper() + report.message[1:]
    advice = element(
        "section",
        element("p", report.next_step) if report.next_step else None,
        element("p", element("a", "All runs", href="/runs")),
        class_="card",
    )
    return shell(phrase, hero(heading, f"{status} {phrase} · {report.code}"), advice)
