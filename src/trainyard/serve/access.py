"""Who may read: the Host and Origin of a request, its token, and headers that restrict browsers.

A server on a loopback address needs no token, but any web page that a browser shows can send requests to it. The Host
header is therefore checked: a page that had its own name resolved to 127.0.0.1 (DNS rebinding) sends that name. The
Origin header, which browsers send with requests of other sites' scripts and forms, must name this server.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Mapping
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard.error_report import ErrorReport
from trainyard.errors import BadInput
from trainyard.serve.answers import error_response, redirect, wants_json

LEAST_TOKEN = 16
"""Characters of a token, so that it cannot be guessed."""
COOKIE = "trainyard_session"
SESSION_S = 7 * 86400
_MOST_TARGET = 4096
"""Characters of the path and query of a request."""
_OPEN_PATHS = ("/login", "/static/")
_COOKIE = re.compile(r"(\d{1,12})\.([0-9a-f]{64})\Z")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?\Z", re.ASCII)
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every response, unless it sets them itself."""


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """`token`: empty if none is needed. `host_names`: names in lower case by which browsers may address the server.
    `any_address`: whether any IP address may be used in their place, which only the owner of the address can do."""

    host_names: frozenset[str]
    token: str = ""
    any_address: bool = False

    def accepts_host(self, host: str) -> bool:
        """Whether a Host header names this server, with any port, since a tunnel has a port of its own."""
        name = host_name(host)
        return bool(name) and (name in self.host_names or (self.any_address and is_address(name)))

    def accepts_token(self, token: str) -> bool:
        """Whether this is the token; takes the same time whatever it differs in."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def new_session(self) -> str:
        """The value of a cookie that is accepted in place of the token until it expires."""
        expires = str(int(time.time()) + SESSION_S)
        return f"{expires}.{self._signature(expires)}"

    def accepts_session(self, value: str) -> bool:
        """Whether a cookie's value was made with this token and has not expired."""
        parts = _COOKIE.match(value)
        return (
            parts is not None
            and hmac.compare_digest(parts[2], self._signature(parts[1]))
            and int(parts[1]) >= time.time()
        )

    def _signature(self, expires: str) -> str:
        return hmac.new(self.token.encode(), f"{COOKIE} {expires}".encode(), hashlib.sha256).hexdigest()


class AccessGuard:
    """Middleware that answers requests which break the rules, and adds headers to all responses."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The response to a request that is refused; None for one that is not."""
        headers = Headers(scope=scope)
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > _MOST_TARGET:
            return _refuse(scope, 414, f"The address has more than {_MOST_TARGET:,} characters.")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._rules.accepts_host(hosts[0]):
            return _refuse(
                scope, 403, f"This server is not {hosts[0][:80]!r}." if hosts else "The request names no host.",
                "Use the address that `trainyard serve` printed, or start it with --allow-host NAME.",
            )  # fmt: skip
        if not _is_same_origin(headers, hosts[0]):
            return _refuse(scope, 403, "The request comes from a page of another site.")
        if self._rules.token and not scope["path"].startswith(_OPEN_PATHS) and not self._is_known(headers):
            if wants_json(scope):
                return _refuse(
                    scope, 401, "The request has no valid token.", "Send the header `Authorization: Bearer TOKEN`.",
                    {"www-authenticate": "Bearer"},
                )  # fmt: skip
            target = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            after = quote(target, safe="")
            return redirect(f"/login?next={after}" if len(after) <= _MOST_TARGET - 100 else "/login")
        return None

    def _is_known(self, headers: Headers) -> bool:
        """Whether a request has the token or a session."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._rules.accepts_token(token.strip()):
            return True
        return self._rules.accepts_session(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""))


def check_token(token: str, source: str) -> str:
    """The token without surrounding white space. `source`: where it is from. Raises `BadInput` for a weak one."""
    token = token.strip()
    if len(token) < LEAST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise BadInput(
            f"{source}: a token has {LEAST_TOKEN} or more printable ASCII characters and no spaces; this one has "
            f"{len(token)} characters.",
            "Make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return token


def host_name(host: str) -> str:
    """The name or address of a Host header in lower case, without port and brackets; empty if it is malformed."""
    match = _HOST.match(host)
    return (match[1] or match[2]).lower().removesuffix(".") if match else ""


def safe_target(target: str) -> str:
    """A path of this server to which a browser may be sent; the first page for anything else."""
    is_local = target.startswith("/") and not target.startswith("//") and "\\" not in target
    return target if is_local and target.isascii() and target.isprintable() else "/"


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Whether a request comes from a page of this server, or from the user. Browsers send the origin of scripts and
    forms, and of newer ones the relation of the sites with every request, so that images are not fetched either."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return False
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    # Following a link is allowed, showing a page in a frame is not.
    follows_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return follows_link or not is_foreign


def _refuse(
    scope: Scope, status: int, message: str, next_step: str = "", headers: Mapping[str, str] | None = None
) -> ASGIApp:
    """The response to a refused request."""
    report = ErrorReport(code=BadInput.code, exit_code=BadInput.exit_code, message=message, next_step=next_step)
    return error_response(report, status, wants_json(scope), headers)
