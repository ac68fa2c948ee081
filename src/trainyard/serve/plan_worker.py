"""Plans in a process of their own, so that a search that takes too long can be ended.

The process reads a `PlanQuery` per line and answers each with a line: a document of plans, or an error report.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, cast

import msgspec

from trainyard import limits
from trainyard.errors import BadInput, EnvironmentFailed, TrainyardError, UnknownName, nearest
from trainyard.serve.run_filter import read_number

SEARCH_LIMIT_S = 20
_ERROR = b'{"error":'
_BUG = "bug"
"""In place of an error's code: the text is for the user who started the server, not for its readers."""


class PlanQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan for. `model`, `machine`: names of the catalogue; `batch`: samples of a step over all devices;
    `seq_len`: tokens of a sequence, None for models of images; `tokens`: budget of the training, 0 for none;
    `front`: with the Pareto front of time and memory, which takes longer."""

    model: str
    machine: str
    devices: int
    batch: int
    seq_len: int | None = None
    tokens: float = 0.0
    front: bool = True


class _Failure(msgspec.Struct):
    """An error of a plan: its class's code or `_BUG`, and its texts."""

    error: str
    message: str
    next_step: str


def read_query(query: Mapping[str, str], models: Mapping[str, bool], machines: Mapping[str, int]) -> PlanQuery:
    """The plan that a query's parameters ask for. `models`: name -> whether it is planned per token; `machines`: name
    -> number of devices. Raises `UnknownName` or `BadInput`."""
    model, machine = query.get("model", ""), query.get("machine", "")
    for kind, name, known in (("model", model, models), ("machine", machine, machines)):
        if not name:
            raise BadInput(f"No {kind} given: the parameter {kind!r} is missing.")
        if name not in known:
            raise UnknownName(f"there is no {kind} {name[:80]!r}.", nearest(name[:80], known))
    seq_len = read_number(query, "seq_len", 0, 1, limits.TOKENS.most) or None
    return PlanQuery(
        model=model,
        machine=machine,
        devices=read_number(query, "devices", machines[machine], 1, limits.DEVICES.most),
        batch=read_number(query, "batch", 256, 1, limits.SAMPLES.most),
        seq_len=seq_len if models[model] else None,
        tokens=float(read_number(query, "tokens", 0, 0, limits.BUDGET.most)),
    )


class PlanWorker:
    """Starts the process when it is first needed, and again after a search that was ended. Safe for threads, which wait
    for each other. `say`: called with messages about errors of the process."""

    def __init__(self, say: Callable[[str], None], limit_s: float = SEARCH_LIMIT_S) -> None:
        self._say, self._limit_s = say, limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def plan(self, query: PlanQuery) -> bytes:
        """The document of plans, as `trainyard plan --json` prints it. Raises `BadInput` for a query that cannot be
        planned for or that takes longer than the limit, `EnvironmentFailed` if the process ends unexpectedly or the
        worker is closed."""
        with self._lock:
            answer = self._ask(msgspec.json.encode(query))
        if not answer.startswith(_ERROR):
            return answer
        failure = msgspec.json.decode(answer, type=_Failure)
        if failure.error == _BUG:
            self._say(f"a search for plans: {failure.message}. This is a bug in trainyard: please report it.")
            raise TrainyardError("The search failed.", "The messages of the server name the error.")
        raise _error_of(failure)

    def close(self) -> None:
        """End the process and refuse further queries. Does not wait for a search: its thread sees the end."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    def _ask(self, request: bytes) -> bytes:
        """Send a request and wait for the answer, without the end of the line."""
        process = self._started()
        stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._limit_s, end)
        timer.start()
        try:
            stdin.write(request + b"\n")
            stdin.flush()
            answer = stdout.readline()
        except OSError:
            answer = b""
        finally:
            timer.cancel()
        if answer.endswith(b"\n"):
            return answer[:-1]
        self._end()
        if self._is_closed:
            raise _closed()
        if not is_late.is_set():
            raise EnvironmentFailed("The process that searches for plans ended.", "Try again.")
        raise BadInput(
            f"The search was ended after {self._limit_s:g} s without a result.",
            "Fix more of the layout on the command line: `trainyard plan --fix tp=8`.",
        )

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, which is started if it does not run. Raises `EnvironmentFailed` if the worker is closed."""
        if not self._is_closed and (self._process is None or self._process.poll() is not None):
            self._end()
            # -P: no module is imported from the folder in which the server was started. In a session of its own, the
            # process is not interrupted by the Ctrl-C that ends the server.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainyard.serve.plan_worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        if self._is_closed or self._process is None:  # `close` may not have seen a process that was just started
            self._end()
            raise _closed()
        return self._process

    def _end(self) -> None:
        """End the process, if there is one, and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # a request that the process did not read
                    stream.close()
        process.wait()


def _closed() -> EnvironmentFailed:
    """The error for a query while the server ends."""
    return EnvironmentFailed("The server is being ended.", "Start it again.")


def _error_of(failure: _Failure) -> TrainyardError:
    """The error as this process raises it."""
    kinds = {kind.code: kind for kind in _kinds(TrainyardError)}
    return kinds[failure.error](failure.message, failure.next_step)


def _kinds(kind: type[TrainyardError]) -> Iterator[type[TrainyardError]]:
    """The class and all that are derived from it."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def answer_request(line: bytes) -> bytes:
    """The answer to a line of the standard input, without the end of the line."""
    from trainyard import api
    from trainyard.printable import encode_json
    from trainyard.redact import redact

    try:
        query = msgspec.json.decode(line, type=PlanQuery)
        plans = api.plan(
            query.model, machine=query.machine, devices=query.devices, batch=query.batch, seq_len=query.seq_len,
            tokens=query.tokens or None, front=query.front,
        )  # fmt: skip
        return encode_json(plans)
    except TrainyardError as error:
        return msgspec.json.encode(_Failure(error.code, redact(error.message), redact(error.next_step)))
    except Exception as error:  # not even a bug may end the process
        return msgspec.json.encode(_Failure(_BUG, f"{type(error).__name__}: {redact(str(error))}", ""))


def main() -> None:
    """Answer requests until the standard input ends, which it does when the server ends."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(answer_request(line) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a traceback
    main()
