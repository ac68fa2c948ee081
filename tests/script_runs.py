"""Runs training scripts on processes that are forked from one with torch loaded, instead of a new interpreter each."""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path

from tests.ports import free_port
from tests.ranks import PRELOAD


def run_script(command: Sequence[str], ranks: int, patience_s: float = 240.0) -> str:
    """The output of a script on `ranks` processes. `command`: launcher and interpreter, which are not used, then the
    script and its arguments. Fails with the traceback of a process that raises."""
    start = next(number for number, part in enumerate(command) if part.endswith(".py"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    readers, processes = [], []
    for rank in range(ranks):
        reader, writer = context.Pipe(duplex=False)
        environment = {**address, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        process = context.Process(target=_run, args=(list(command[start:]), environment, writer), daemon=True)
        process.start()
        writer.close()
        readers.append(reader)
        processes.append(process)
    try:
        return "".join(_receive(reader, patience_s) for reader in readers)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _receive(reader: Connection, patience_s: float) -> str:
    assert reader.poll(patience_s), "a script did not end in time"
    succeeded, output = reader.recv()
    assert succeeded, output
    return output


def _run(arguments: list[str], environment: dict[str, str], writer: Connection) -> None:
    os.environ.update(environment)
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            runpy.run_path(arguments[0], run_name="__main__")
    except BaseException:
        writer.send((False, traceback.format_exc()))
        return
    writer.send((True, output.getvalue()))
