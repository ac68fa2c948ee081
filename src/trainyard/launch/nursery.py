"""Agents of this machine, forked from a process that has torch loaded: one import for all, and none for a new one.

The supervisor cannot fork them itself once its store runs, in threads of its own. So it forks this process before, and
tells it through a socket whom to start and to kill; it hears who has ended. Nobody outlives anybody: agents die with
this process, and this process with the supervisor.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from trainyard.launch.orphan import die_with_parent

_TURN_S = 0.02


class Nursery:
    """`run` is an agent's whole life: given its node and this process's id, its exit code. Forks at once."""

    def __init__(self, run: Callable[[int, int], int]) -> None:
        self._line, other = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._line.close()
            _tend(parent, other, run)
        other.close()
        self._line.setblocking(False)
        self._rest = b""

    def start(self, node: int) -> None:
        self._line.sendall(b"start %d\n" % node)

    def kill(self, node: int) -> None:
        """Nothing happens to one that has ended already."""
        self._line.sendall(b"kill %d\n" % node)

    def ended(self) -> list[int]:
        """Nodes whose agent has ended since this was asked last. Raises `ChildProcessError` when this process has."""
        try:
            while data := self._line.recv(4096):
                self._rest += data
            raise ChildProcessError("the process that starts agents is gone")
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        return [int(line) for line in lines]

    def end(self) -> None:
        """Kills it, and its agents with it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _tend(parent: int, line: socket.socket, run: Callable[[int, int], int]) -> NoReturn:
    """In the forked process: until its parent is gone."""
    die_with_parent(parent, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # where it is sent to all, ranks and supervisor act on it
    here, nodes, rest = os.getpid(), dict[int, int](), b""
    while True:
        if select.select([line], [], [], _TURN_S)[0]:
            data = line.recv(4096)
            if not data:
                os._exit(0)
            *orders, rest = (rest + data).split(b"\n")
            for order in orders:
                what, number = order.split()
                if what == b"kill":
                    for pid in [pid for pid, node in nodes.items() if node == int(number)]:
                        os.kill(pid, signal.SIGKILL)
                elif pid := os.fork():
                    nodes[pid] = int(number)
                else:
                    line.close()
                    _live(run, int(number), here)
        while nodes:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            line.sendall(b"%d\n" % nodes.pop(pid))


def _live(run: Callable[[int, int], int], node: int, parent: int) -> NoReturn:
    code = 70
    try:
        code = run(node, parent)
    except BaseException:  # what follows belongs to the process that was forked
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
