"""Starts the server: where it listens, under which names, and who needs a token."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from trainyard.errors import BadInput, EnvironmentFailed, PortInUse
from trainyard.formats.regular_files import read_bytes
from trainyard.serve.access import AccessRules, check_token, host_name, is_address
from trainyard.serve.app import build_app
from trainyard.serve.connections import bounded_protocol, most_connections
from trainyard.serve.served_store import ServedStore

TOKEN_VARIABLE = "TRAINYARD_SERVE_TOKEN"  # noqa: S105
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_WAITING_CONNECTIONS = 64
"""Connections that may wait to be accepted; asyncio accepts so many before it looks at any of them."""
_MOST_HEADER_BYTES = 16384
_SHUTDOWN_S = 2
"""Seconds that open requests have when the server ends."""


def read_token(file: Path | None, say: Callable[[str], None]) -> str:
    """The token of the file or, without one, of the environment; empty if there is none. `say`: called with a warning
    if other users can read the file. Raises `BadInput`."""
    if file is not None:
        try:
            text = read_bytes(file).decode("ascii")
        except UnicodeDecodeError as error:
            raise BadInput(f"{file}: a token is ASCII text.") from error
        if (mode := file.stat().st_mode & 0o777) & 0o044:
            say(f"{file}: other users can read the token (its mode is {mode:03o}): chmod 600 {file}")
        return check_token(text, str(file))
    text = os.environ.get(TOKEN_VARIABLE, "")
    return check_token(text, TOKEN_VARIABLE) if text else ""


def access_rules(host: str, token: str, allowed_names: Sequence[str] = ()) -> AccessRules:
    """Who may read a server that listens at `host`, an address or a name. `allowed_names`: further names by which
    browsers address it, whose ports are ignored. Raises `BadInput` without a token for an address that other hosts
    reach or for further names, and for a name that is malformed."""
    is_local = _is_loopback(host)
    if not token and (allowed_names or not is_local):
        option = f"--host {host}" if not is_local else f"--allow-host {allowed_names[0]}"
        raise BadInput(
            f"{option}: others can reach this server, so it needs a token.",
            f"Pass --token-file FILE or set {TOKEN_VARIABLE}; or serve 127.0.0.1 alone and use an SSH tunnel.",
        )
    own_names = () if is_local else (host, socket.gethostname(), socket.getfqdn())
    names = {*(name.lower() for name in (*_LOCAL_NAMES, *own_names)), *map(_allowed_name, allowed_names)}
    return AccessRules(host_names=frozenset(names), token=token, any_address=not is_local)


def _allowed_name(text: str) -> str:
    """The name that --allow-host accepts, as `host_name` returns it. Raises `BadInput` for a malformed one."""
    name = text.lower() if is_address(text) else host_name(text)
    if not name:
        raise BadInput(
            f"--allow-host {text[:80]!r}: this is not a host name or an address.",
            "Pass the name alone, such as runs.example.org, without http:// and a path.",
        )
    return name


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at `host`; at a free port if `port` is 0. Raises `PortInUse` or `EnvironmentFailed`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise BadInput(f"--host {host}: cannot be used: {error}.", "Pass an address of this machine.") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_WAITING_CONNECTIONS)
    except OSError as error:
        listening.close()
        kind = PortInUse if error.errno in (48, 98) else EnvironmentFailed
        raise kind(
            f"cannot listen at {host}, port {port}: {error.strerror}.", "Pass another --port; 0 takes a free one."
        ) from error
    return listening


def serve(listening: socket.socket, store: ServedStore, rules: AccessRules, say: Callable[[str], None]) -> None:
    """Answers requests at `listening` until the process is interrupted. `say`: called with messages."""
    config = uvicorn.Config(
        build_app(store, rules, say), log_level="error", access_log=False, server_header=False, proxy_headers=False,
        backlog=_WAITING_CONNECTIONS, ws="none", http=bounded_protocol(most_connections()), lifespan="on",
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES, timeout_graceful_shutdown=_SHUTDOWN_S,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])


def url_of(listening: socket.socket) -> str:
    """The address of the server for a browser of this machine."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
