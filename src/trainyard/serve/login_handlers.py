"""The form for the token, and the session of a browser that has sent it."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trainyard.errors import BadInput
from trainyard.serve import answers
from trainyard.serve.access import COOKIE, SESSION_S, AccessRules, safe_target
from trainyard.serve.pages.login_page import login_page

_MOST_FORM_BYTES, _MOST_FORM_FIELDS = 8192, 8


class LoginHandlers:
    """The handlers of the login page. `rules`: who may read."""

    def __init__(self, rules: AccessRules) -> None:
        self._rules = rules

    async def page(self, request: Request) -> Response:
        """The form for the token; the first page if none is needed."""
        target = safe_target(request.query_params.get("next", "/"))  # may be longer than other parameters
        return answers.page(login_page(target, is_refused=False)) if self._rules.token else answers.redirect(target)

    async def start_session(self, request: Request) -> Response:
        """Checks a token and gives the browser a cookie."""
        form = await _read_form(request)
        target = safe_target(form.get("next", ["/"])[0])
        if not self._rules.token:
            return answers.redirect(target)
        if not self._rules.accepts_token(form.get("token", [""])[0].strip()):
            return answers.page(login_page(target, is_refused=True), 401)
        response = answers.redirect(target)
        response.set_cookie(
            COOKIE, self._rules.new_session(), max_age=SESSION_S, httponly=True, samesite="strict",
            secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").strip().lower()),
        )  # fmt: skip
        return response


async def _read_form(request: Request) -> dict[str, list[str]]:
    """The fields of a form. Raises `HTTPException` or `BadInput` for one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_FORM_BYTES:
            raise HTTPException(413, f"The form has more than {_MOST_FORM_BYTES:,} bytes.")
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FORM_FIELDS)
    except ValueError as error:
        raise BadInput(f"The form has more than {_MOST_FORM_FIELDS} fields.") from error
