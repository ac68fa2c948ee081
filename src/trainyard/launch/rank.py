"""`python -m trainyard.launch.rank LOGS PARENT MODULE ARG...`: one rank's process, before it is a rank.

Sends its output to `LOGS/rank<N>.out` and `.err`, dies with the agent that started it, and writes when and
why it failed to `LOGS/rank<N>.failed`: the earliest is the culprit, the others its victims.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

from trainyard.launch.orphan import die_with_parent


def main(logs: Path, parent: int, module: str, args: list[str]) -> None:
    name = f"rank{os.environ['RANK']}"
    for stream, end in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        target = os.open(logs / f"{name}.{end}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, stream.fileno())
        os.close(target)
    faulthandler.enable()
    die_with_parent(parent, signal.SIGKILL)
    sys.argv = [module, *args]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            why = "".join(traceback.format_exception_only(error)).strip()
            (logs / f"{name}.failed").write_text(f"{time.time_ns()}\n{why}", "utf-8")
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
