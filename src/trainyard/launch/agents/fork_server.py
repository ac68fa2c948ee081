"""Agents of this machine, forked from a process that has torch loaded: one import for all, and none for a new one.

The supervisor cannot fork them itself once its store runs, in threads of its own. So it forks this process before, and
tells it through a socket whom to start and to kill; it hears who has ended. Nobody outlives anybody: agents die with
this process, and this process with the supervisor. Should it die alone, the supervisor starts another one anew, as
`python -m trainyard.launch.agents.fork_server SPEC.json PARENT LINE`: importing torch takes that one seconds.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from trainyard.launch.agents.preload import preload
from trainyard.launch.agents.process_title import set_process_name
from trainyard.launch.launch_spec import Spec
from trainyard.pdeathsig import die_with_parent

_TURN_S = 0.02


class ForkServer:
    """Starts agents of the job at `path`, a SPEC. `run` is an agent's whole life: given its node and its parent's id,
    its exit code. Forks at once."""

    def __init__(self, path: Path, run: Callable[[int, int], int]) -> None:
        self._path = path
        self._nodes: set[int] = set()
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
        self._nodes.add(node)
        self._order(b"start %d\n" % node)

    def kill(self, node: int) -> None:
        """Nothing happens to one that has ended already."""
        self._order(b"kill %d\n" % node)

    def _order(self, order: bytes) -> None:
        with suppress(ConnectionError):  # it is dead: `ended` will find that, and that its agents are too
            self._line.sendall(order)

    def ended(self) -> list[int]:
        """Nodes whose agent has ended since this was asked last."""
        try:
            while data := self._line.recv(4096):
                self._rest += data
        except BlockingIOError:
            *lines, self._rest = self._rest.split(b"\n")
            found = [int(line) for line in lines]
            self._nodes -= set(found)
            return found
        except ConnectionError:
            pass
        return self._followed()

    def _followed(self) -> list[int]:
        """It has died, and its agents with it: another one takes its place, and has no agents yet."""
        self.end()
        self._line.close()
        self._line, other = socket.socketpair()
        other.set_inheritable(True)
        command = [sys.executable, "-P", "-m", __name__, str(self._path), str(os.getpid()), str(other.fileno())]
        self.pid = os.posix_spawn(sys.executable, command, os.environ)
        other.close()
        self._line.setblocking(False)
        self._rest = b""
        gone, self._nodes = sorted(self._nodes), set()
        return gone

    def end(self) -> None:
        """Kills it, and its agents with it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def load(spec: Spec) -> None:
    """Imports what agents and ranks need, before any is forked."""
    preload((*spec.preload, "trainyard.launch.agents.elastic"))


def agent(path: Path, node: int, parent: int) -> int:
    """The whole life of an agent of the job at `path`, in the process that was forked for it; its exit code."""
    from trainyard.launch.agents import elastic

    log = os.open(path.parent / "logs" / f"agent{node}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return elastic.main(path, node, parent)


def _tend(parent: int, line: socket.socket, run: Callable[[int, int], int]) -> NoReturn:
    """Until its parent is gone."""
    die_with_parent(parent, signal.SIGKILL)
    set_process_name("fork-server")
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


def main(path: Path, parent: int, line: int) -> NoReturn:
    die_with_parent(parent, signal.SIGKILL)
    set_process_name("fork-server")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    load(msgspec.json.decode(path.read_bytes(), type=Spec))
    _tend(parent, socket.socket(fileno=line), partial(agent, path))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
