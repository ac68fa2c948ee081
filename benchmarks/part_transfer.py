"""Measures the receiver of parts: `python -m benchmarks.part_transfer [NODES] [--megabytes N]`.

Prints the CPU time in which the supervisor's receiver takes the part of each node from its store, once all nodes are
connected. The receiver and the store share this process, as in a supervisor; the senders are threads of other
processes, with a connection each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

from trainyard.launch.supervisor.listen import raise_open_files_limit
from trainyard.launch.supervisor.part_transfer import PartReceiver, read_transfers, send_part
from trainyard.launch.supervisor.signed_store import SignedStore

_SECRET = "benchmark"  # noqa: S105 - protects nothing
_TIMEOUT = timedelta(seconds=120)
_CONNECTED, _START = "connected", "start"
"""Keys of the store: number of connected nodes; set when they may send."""
_SENDERS = 2
"""Processes that the sending nodes share."""


def send_parts(nodes: list[int], port: int, size: int) -> None:
    """Send `size` random bytes as the part of each of `nodes`, all at the same time."""
    from torch._C._distributed_c10d import TCPStore

    archive = os.urandom(size)

    def send(node: int) -> None:
        """Send the part of one node over a connection of its own."""
        store = TCPStore("127.0.0.1", port, None, False, _TIMEOUT, wait_for_workers=False)
        store.add(_CONNECTED, 1)
        store.wait([_START])
        send_part(SignedStore(store, _SECRET), node, archive)

    threads = [threading.Thread(target=send, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Receive the parts, check that all are complete, and print the cost."""
    from torch._C._distributed_c10d import TCPStore

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="?", type=int, default=128)
    parser.add_argument("--megabytes", type=float, default=1.0, help="Size of each part (1).")
    options = parser.parse_args()
    raise_open_files_limit()
    server = TCPStore("127.0.0.1", 0, None, True, _TIMEOUT, wait_for_workers=False)
    context, size = multiprocessing.get_context("spawn"), round(1e6 * options.megabytes)
    nodes = list(range(1, options.nodes + 1))
    senders = [
        context.Process(target=send_parts, args=(nodes[index::_SENDERS], server.port, size), daemon=True)
        for index in range(_SENDERS)
    ]
    for sender in senders:
        sender.start()
    while server.add(_CONNECTED, 0) < len(nodes):
        time.sleep(0.1)
    with tempfile.TemporaryDirectory() as folder:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        server.set(_START, "")
        PartReceiver(SignedStore(server, _SECRET), Path(folder)).receive(nodes)
        cpu_s, elapsed_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
        problems = [transfer.problem for transfer in read_transfers(Path(folder)).values() if transfer.problem]
    for sender in senders:
        sender.join()
    if problems:
        raise SystemExit(f"{len(problems)} of {len(nodes)} parts are incomplete: {problems[0]}.")
    total_mb = len(nodes) * size / 1e6
    print(
        f"{len(nodes)} parts of {size / 1e6:g} MB: {cpu_s:.2f} s of CPU time of receiver and store "
        f"({total_mb / cpu_s:.0f} MB a second), {elapsed_s:.1f} s in all"
    )


if __name__ == "__main__":
    main()
