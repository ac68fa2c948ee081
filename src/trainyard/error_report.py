"""An error as plain data: what a command with --json prints if it fails."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.errors import TrainyardError


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: one of the codes in `trainyard.errors`, `bad-usage` or `internal-error`. `exit_code`: of the command."""

    schema: Literal["trainyard/error/1"] = "trainyard/error/1"
    code: str
    exit_code: int
    message: str
    next_step: str = ""


def report_of(error: TrainyardError) -> ErrorReport:
    """The error with secrets redacted."""
    from trainyard.redact import redact

    return ErrorReport(
        code=error.code, exit_code=error.exit_code, message=redact(error.message), next_step=redact(error.next_step)
    )
