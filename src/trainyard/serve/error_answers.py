"""The responses to requests that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from trainyard.error_report import ErrorReport
from trainyard.errors import BadInput, EnvironmentFailed, TrainyardError
from trainyard.serve import answers

Handler = Callable[[Request], Awaitable[Response]]


class ErrorAnswers:
    """Adds responses for errors to handlers. `folder`: returns the folder of a run, or raises an error if the store has
    no such run; `say`: called with messages for the user who started the server."""

    def __init__(self, folder: Callable[[str], Path], say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say

    def wrap(self, handler: Handler) -> Handler:
        """The handler, with a response for every error."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except TrainyardError as error:
                return answers.response_of(error, answers.wants_json(request.scope))
            except HTTPException:
                raise
            except OSError as error:
                return await run_in_threadpool(self._answer_unreadable, request, error)
            except asyncio.CancelledError:  # the server ends; uvicorn would print a traceback
                return Response(status_code=503)
            except ClientDisconnect:
                return Response(status_code=400)  # the client has gone and does not read it
            except Exception as error:
                return self._answer_bug(request, error)

        return answer

    def _answer_unreadable(self, request: Request, error: OSError) -> Response:
        """The response to a request whose files cannot be read: 404 if a run was deleted meanwhile, otherwise 503."""
        query = request.query_params
        ids = (request.path_params.get("id"), query.get("base"), query.get("new"))
        try:
            for id in filter(None, ids):
                self._folder(id)
            self._say(f"{request.url.path}: {error}")
            raise EnvironmentFailed("The files of the store cannot be read.", "The server's messages name the error.")
        except TrainyardError as failure:
            return answers.response_of(failure, answers.wants_json(request.scope))

    def _answer_bug(self, request: Request, error: Exception) -> Response:
        """The response to an error of the server, whose text is only printed there."""
        self._say(f"{request.url.path}: {type(error).__name__}: {error}. This is a bug in trainyard: please report it.")
        report = ErrorReport(
            code=TrainyardError.code, exit_code=TrainyardError.exit_code, message="The server failed.",
            next_step="Its messages name the error.",
        )  # fmt: skip
        return answers.error_response(report, 500, answers.wants_json(request.scope))


async def answer_http_error(request: Request, error: Any) -> Response:
    """The response to an unknown address, a method that is not allowed, and the like."""
    message = {404: "There is no such page.", 405: "This address cannot be used in this way."}
    report = ErrorReport(
        code=BadInput.code, exit_code=BadInput.exit_code, message=message.get(error.status_code, str(error.detail))
    )
    return answers.error_response(report, error.status_code, answers.wants_json(request.scope), error.headers)
