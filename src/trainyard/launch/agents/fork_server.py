"""A fork server for the agents of this machine: a process with torch loaded, so that agents start without importing it.

The supervisor cannot fork agents itself once its store runs, in threads of its own. It therefore forks this process
first and sends it, through a socket, which agents to start and to kill; the process reports which have ended. Agents
die with this process, and this process with the supervisor. If this process dies alone, the supervisor starts a new one
as `python -m trainyard.launch.agents.fork_server SPEC.json PARENT SOCKET`, which takes seconds to import torch.
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
from trainyard.launch.launch_spec import TOKEN, Spec
from trainyard.launch.supervisor.signed_store import take_token
from trainyard.pdeathsig import die_with_parent

_TURN_S = 0.02
"""Seconds between two checks whether an agent has ended."""
_RECEIVED_BYTES = 4096
"""Largest number of bytes received at once."""
_INTERNAL_ERROR = 70
"""Exit code of an agent that raised an exception (EX_SOFTWARE of sysexits.h)."""


class ForkServer:
    """The supervisor's handle of the fork server, a process that starts agents of the job at `path`, a SPEC.

    `run`: runs an agent to its end, given its node and its parent's process id, and returns the exit code. `token`:
    that of the job.
    """

    def __init__(self, path: Path, run: Callable[[int, int], int], token: str) -> None:
        """Fork the fork server; this process keeps one end of the socket pair, the fork server the other."""
        self._path, self._token = path, token
        self._nodes: set[int] = set()
        """Nodes whose agents were started and have not been reported as ended."""
        self._partial_line = b""
        """Received bytes after the last newline."""
        self._socket, child_socket = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _serve_orders(parent, child_socket, run)
        child_socket.close()
        self._socket.setblocking(False)

    def start(self, node: int) -> None:
        """Start the agent of a node."""
        self._nodes.add(node)
        self._send(b"start %d\n" % node)

    def kill(self, node: int) -> None:
        """Kill the agent of a node, unless it has ended already."""
        self._send(b"kill %d\n" % node)

    def _send(self, order: bytes) -> None:
        with suppress(ConnectionError):  # the fork server is dead, and its agents with it: `ended` detects that
            self._socket.sendall(order)

    def ended(self) -> list[int]:
        """Return the nodes whose agents have ended since the last call. Does not block.

        If the fork server itself has died, a new one is started, and all its agents count as ended.
        """
        try:
            while data := self._socket.recv(_RECEIVED_BYTES):
                self._partial_line += data
        except BlockingIOError:
            *lines, self._partial_line = self._partial_line.split(b"\n")
            nodes = [int(line) for line in lines]
            self._nodes -= set(nodes)
            return nodes
        except ConnectionError:
            pass
        return self._restart()

    def _restart(self) -> list[int]:
        """Start a new fork server after the old one has died with its agents; return the nodes of these agents,
        sorted."""
        self.end()
        self._socket.close()
        self._socket, child_socket = socket.socketpair()
        child_socket.set_inheritable(True)
        # Not a fork, as the supervisor runs threads by now: a new Python, which imports torch itself.
        command = [sys.executable, "-P", "-m", __name__, str(self._path), str(os.getpid()), str(child_socket.fileno())]
        self.pid = os.posix_spawn(sys.executable, command, {**os.environ, TOKEN: self._token})
        child_socket.close()
        self._socket.setblocking(False)
        self._partial_line = b""
        dead_nodes, self._nodes = sorted(self._nodes), set()
        return dead_nodes

    def end(self) -> None:
        """Kill the fork server and its agents."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def load(spec: Spec) -> None:
    """Import the modules of agents and ranks, before any is forked."""
    preload((*spec.preload, "trainyard.launch.agents.elastic"))


def agent(path: Path, token: str, node: int, parent: int) -> int:
    """Run an agent of the job at `path`, in the process that was forked for it; return its exit code.

    `token`: that of the job; `parent`: id of the process that the agent dies with.
    """
    from trainyard.launch.agents import elastic

    log = os.open(path.parent / "logs" / f"agent{node}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return elastic.main(path, node, parent, token)


def _serve_orders(supervisor_pid: int, supervisor_socket: socket.socket, run: Callable[[int, int], int]) -> NoReturn:
    """Start and kill agents as ordered through `supervisor_socket`, and report through it which have ended.

    The main loop of the fork server; ends with the process `supervisor_pid`. An order is a line `start NODE` or
    `kill NODE`, a report a line with the node. `run`: as in `ForkServer`; it is called in a fork of this process.
    """
    die_with_parent(supervisor_pid, signal.SIGKILL)
    set_process_name("fork-server")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a SIGTERM sent to all processes is handled by the supervisor
    own_pid, partial_line = os.getpid(), b""
    node_of_pid: dict[int, int] = {}  # process id of an agent -> its node
    while True:
        if select.select([supervisor_socket], [], [], _TURN_S)[0]:
            data = supervisor_socket.recv(_RECEIVED_BYTES)
            if not data:
                os._exit(0)
            *orders, partial_line = (partial_line + data).split(b"\n")
            for order in orders:
                verb, node_digits = order.split()
                ordered_node = int(node_digits)
                if verb == b"kill":
                    for pid in [pid for pid, node in node_of_pid.items() if node == ordered_node]:
                        os.kill(pid, signal.SIGKILL)
                elif pid := os.fork():
                    node_of_pid[pid] = ordered_node
                else:  # in the forked process
                    supervisor_socket.close()
                    _run_agent(run, ordered_node, own_pid)
        while node_of_pid:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            supervisor_socket.sendall(b"%d\n" % node_of_pid.pop(pid))


def _run_agent(run: Callable[[int, int], int], node: int, parent: int) -> NoReturn:
    """Run the agent of `node` in the process that was just forked for it, and exit with its code. `run`: as in
    `ForkServer`; `parent`: process id of the fork server."""
    exit_code = _INTERNAL_ERROR
    try:
        exit_code = run(node, parent)
    except BaseException:  # do not return into the caller's code, which belongs to the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(exit_code)


def main(path: Path, parent: int, socket_descriptor: int) -> NoReturn:
    """Run a fork server that was started as a new program, for the job at `path`, a SPEC.

    `parent`: the supervisor's process id; `socket_descriptor`: file descriptor of the socket to it.
    """
    die_with_parent(parent, signal.SIGKILL)
    set_process_name("fork-server")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    token = take_token()
    load(msgspec.json.decode(path.read_bytes(), type=Spec))
    _serve_orders(parent, socket.socket(fileno=socket_descriptor), partial(agent, path, token))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
