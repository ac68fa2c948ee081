"""`python -m trainyard.launch.elastic SPEC.json PARENT`: starts the ranks through torch's elastic launcher.

A process of its own, so that the one a user talks to never imports torch and can kill all of it.
Exit codes: 0 all ranks ended well; 4 a rank died or none could start, and failure.json beside the SPEC says which.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trainyard.launch.failure import Failure, tail, write
from trainyard.launch.orphan import die_with_parent
from trainyard.launch.spec import Spec


def main(path: Path, parent: int) -> int:
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    die_with_parent(parent, signal.SIGTERM)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")  # seconds from asking a rank to end to killing it
    logs = path.parent / "logs"
    logs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=spec.ranks,
            run_id=path.parent.name,
            rdzv_backend="c10d",
            rdzv_endpoint=f"127.0.0.1:{spec.port}",
            rdzv_configs={"is_host": True},
            local_addr="127.0.0.1",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=scratch),
        )
        rank = ["-P", "-m", "trainyard.launch.rank", str(logs), str(os.getpid()), spec.module, *spec.args]
        try:
            elastic_launch(config, sys.executable)(*rank)
        except ChildFailedError as error:
            write(path.parent, _failure(error.failures, logs))
            return 4
        except RendezvousConnectionError as error:
            why = str(error.__cause__ or error).splitlines()[0]
            words = f"the ranks cannot meet at {config.rdzv_endpoint}: {why}"
            write(path.parent, Failure(rank=-1, pid=os.getpid(), exit_code=4, when=time.time(), last_words=words))
            return 4
        except SignalException as error:
            return 128 + error.sigval
    return 0


def _failure(failures: dict[int, ProcessFailure], logs: Path) -> Failure:
    """The failure that came first. torch stamps them by the second, and adds the ranks it ended itself."""
    ours = [rank for rank in failures if failures[rank].exitcode == -signal.SIGTERM]
    told = {rank: _told(logs / f"rank{rank}.failed") for rank in sorted(failures.keys() - ours) or ours}
    # A rank killed by a signal could tell nothing, and its peers fail after it: it goes first.
    rank = min(told, key=lambda rank: told[rank][0])
    return Failure(
        rank=rank,
        pid=failures[rank].pid,
        exit_code=failures[rank].exitcode,
        when=time.time(),
        last_words=told[rank][1] or tail(logs / f"rank{rank}.err"),
    )


def _told(path: Path) -> tuple[int, str]:
    """When (ns since the epoch) and why a rank says that it failed; zero and nothing from one that could not say."""
    try:
        when, _, why = path.read_text("utf-8").partition("\n")
        return int(when), why
    except (OSError, ValueError):
        return 0, ""


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2])))
