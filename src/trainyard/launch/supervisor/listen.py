"""Listen for a job's agents and ranks."""

from __future__ import annotations

import ipaddress
import resource
import socket
from contextlib import suppress

_MAX_WAITING_CONNECTIONS = 4096
"""Connections that may wait to be accepted, as all ranks connect at once; the kernel lowers it to
net.core.somaxconn."""
_LOCAL_NAME = "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Listen at host:port. Raises `OSError` if the port is in use, or the host is not this one.

    Debian maps a host's own name to 127.0.1.1, which no other host reaches: for a name that stands for a loopback
    address, other than `localhost`, it listens at all addresses.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = str(address[0])
    if ipaddress.ip_address(bound.partition("%")[0]).is_loopback and not is_loopback(host):
        bound = ""
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((bound, port))
        listening.listen(_MAX_WAITING_CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or a literal loopback address, which only processes of the same host reach."""
    if host == _LOCAL_NAME:
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def raise_open_files_limit() -> None:
    """Raise this process's limit of open files as far as it may: each rank and each agent holds a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
