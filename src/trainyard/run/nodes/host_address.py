"""The address at which other hosts reach this one, and the network interface of an address."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path

from trainyard.launch.supervisor.listen import is_loopback

_SIOCGIFADDR = 0x8915
"""ioctl that returns the IPv4 address of an interface (linux/sockios.h)."""
_MAX_NAME = 15
_ELSEWHERE = "192.0.2.1"
"""An address of documentation networks (RFC 5737), which no host has."""
_IPV6 = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str:
    """Return the name of the interface with this IP address, such as `eth0`; empty if it cannot be determined.

    Linux only: elsewhere it is always empty.
    """
    try:
        wanted = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(wanted, ipaddress.IPv6Address):
        if wanted.ipv4_mapped is None:
            return _interface_of_ipv6(wanted)
        wanted = wanted.ipv4_mapped
    if wanted.is_loopback:
        return _loopback()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address
                request = struct.pack("256s", name.encode()[:_MAX_NAME])
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(reply[20:24]) == str(wanted):
                    return name
    return ""


def _loopback() -> str:
    """The name of the loopback interface; empty if there is none of the usual names."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), "")


def _interface_of_ipv6(address: ipaddress.IPv6Address) -> str:
    """As `interface_of`, from the kernel's list: address in hexadecimal, four numbers, and the interface's name."""
    try:
        lines = _IPV6.read_text().splitlines()
    except OSError:
        return ""
    wanted = address.packed.hex()
    return next((fields[5] for line in lines if (fields := line.split())[:1] == [wanted] and len(fields) > 5), "")


def own_address(host: str, port: int) -> str:
    """Return the address at which other hosts reach this one, which they call `host`.

    It is the address that `host` resolves to, unless that is a loopback address that was not given literally: Debian
    maps a host's own name to 127.0.1.1. Then it is the address of the default route; empty without one. `port`: of the
    job, for the resolution only.
    """
    with suppress(OSError):
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        if not is_loopback(address) or is_loopback(host):
            return address
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_ELSEWHERE, 9))  # sends nothing: it only chooses the route
        return str(probe.getsockname()[0])
    return ""
