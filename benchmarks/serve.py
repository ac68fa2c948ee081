"""How fast `trainyard serve` answers, and whether readers see all that writers store.

`python -m benchmarks.serve` fills a store with 10,000 runs, starts the server on a free loopback port, and measures the
time of requests one after the other: lists, filters, and comparisons that were not asked for before. Then 4 processes
add runs while 50 readers send requests without a pause. Each writer asks for its run as soon as it is stored, and at
the end the list is compared with what was stored. Times are those of the client.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.record import Provenance, Run, Sample
from trainyard.store.store import Store, new_id

JOBS, HOSTS, STEPS = 40, 25, 50
ACCOUNTS = ("compute/matmul", "compute/attention", "comm/all_gather", "comm/reduce_scatter", "unexplained")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
JOB_TEXT = "name = 'benchmark'\n"


def made_run(number: int) -> Run:
    """A complete run with 50 steps and the ledgers of two, of one of 40 jobs on one of 25 hosts."""
    chance = random.Random(number)
    times = [round(chance.gauss(1, 0.01) * ms * 1e6) for ms in (180, 60, 22, 31, 2)]
    entries = tuple(Entry(account=Account(*name.split("/")), ns=ns) for name, ns in zip(ACCOUNTS, times))
    wall_ns = sum(times)
    return Run(
        id=new_id(),
        job=Job(
            name=f"job-{number % JOBS:02}",
            model=Model(layers=32, hidden_size=4096, ffn_hidden_size=14336, heads=32, kv_heads=8, head_dim=128),
            layout=Layout(dp_shard=8),
            recipe=Recipe(seq_len=4096, tokens_per_step=1 << 19),
        ),
        started=(BEGIN + timedelta(minutes=number)).isoformat(timespec="milliseconds"),
        state="complete",
        provenance=Provenance(
            code={"sha": f"{chance.getrandbits(160):040x}", "dirty": "no"}, host={"name": f"node-{number % HOSTS:03}"}
        ),
        samples=tuple(
            Sample(step=step, rank=0, repeat=0, wall_ns=wall_ns + step, tokens=1 << 16, loss=8 / (step + 1),
                   memory_bytes=60 << 30)
            for step in range(STEPS)
        ),
        ledgers=tuple(
            Ledger(wall_ns=wall_ns, entries=entries, scope=Scope(steps=(str(step),), ranks=(0,))) for step in (8, 9)
        ),
    )  # fmt: skip


def add_runs(root: Path, numbers: Sequence[int]) -> list[str]:
    """Stores runs; returns their ids."""
    store = Store(root, say=print)
    ids: list[str] = []
    for number in numbers:
        run = made_run(number)
        store.begin(run, JOB_TEXT)
        ids.append(store.finish(run).id)
    return ids


@contextmanager
def server(root: Path) -> Iterator[str]:
    """The host and port of a server of the store, which ends with the context."""
    command = [sys.executable, "-m", "trainyard.cli.main", "serve", "--port", "0", "--json"]
    environment = {**os.environ, "TRAINYARD_STORE": str(root)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield urlsplit(json.loads(line)["url"]).netloc
        finally:
            process.terminate()


class Client:
    """A connection that is kept open. `times`: seconds of each request."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self.times: list[float] = []

    def get(self, target: str) -> bytes:
        """The body of the answer. Raises `OSError` for any status but 200."""
        begin = time.perf_counter()
        self._connection.request("GET", target)
        answer = self._connection.getresponse()
        body = answer.read()
        self.times.append(time.perf_counter() - begin)
        if answer.status != 200:
            raise OSError(f"{target}: status {answer.status}: {body[:300]!r}")
        return body

    def ids(self) -> set[str]:
        """The ids of all runs in the list."""
        ids: set[str] = set()
        while True:
            page = json.loads(self.get(f"/api/runs?per_page=1000&page={len(ids) // 1000 + 1}"))["runs"]
            ids.update(row["id"] for row in page)
            if len(page) < 1000:
                return ids


def percentile(times: Sequence[float], share: float) -> float:
    """The time in ms that this share of the requests does not exceed."""
    return 1e3 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


def show(title: str, times: Sequence[float]) -> None:
    """Prints median, 95th percentile and largest time in ms."""
    cells = (f"{percentile(times, 0.5):7.1f}", f"{percentile(times, 0.95):7.1f}", f"{1e3 * max(times):7.1f}")
    print(f"{title:<44} {' '.join(cells)} ms   {len(times):,} requests", flush=True)


def measure_alone(address: str, ids: Sequence[str], repeats: int) -> None:
    """Requests of one client, one after the other."""
    chance = random.Random(1)
    targets: dict[str, Callable[[], str]] = {
        "list": lambda: "/runs",
        "list, page 100": lambda: "/runs?page=100",
        "list, filtered by job, host and text": lambda: f"/runs?job=job-0{chance.randrange(10)}&host=node-005&q=dp",
        "list as JSON, 1,000 rows": lambda: "/api/runs?per_page=1000",
        "jobs": lambda: "/history",
        "comparison, first time": lambda: "/compare?base={}&new={}".format(*chance.sample(ids, 2)),
        "comparison as JSON, first time": lambda: "/api/compare?base={}&new={}".format(*chance.sample(ids, 2)),
        "comparison again": lambda: f"/compare?base={ids[0]}&new={ids[1]}",
        "run": lambda: f"/runs/{chance.choice(ids)}",
    }
    print(f"{'one client':<44} {'median':>7} {'95 %':>7} {'most':>7}")
    for title, target in targets.items():
        client = Client(address)
        for _ in range(repeats):
            client.get(target())
        show(title, client.times)


def write_and_ask(root: Path, address: str, first: int, seconds: float) -> tuple[list[str], list[str]]:
    """Stores runs for a time, and asks for each as soon as it is stored; returns their ids and what went wrong."""
    client, ids, problems = Client(address), list[str](), list[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        (id,) = add_runs(root, [first + len(ids)])
        ids.append(id)
        try:
            rows = json.loads(client.get(f"/api/runs?q={id}"))["runs"]
            if [(row["id"], row["state"]) for row in rows] != [(id, "complete")]:
                problems.append(f"{id} is not listed as complete: {rows}")
            client.get(f"/api/runs/{id}")
        except (OSError, http.client.HTTPException) as error:
            problems.append(f"{id}: {error}")
    return ids, problems


def measure_together(root: Path, address: str, ids: Sequence[str], args: argparse.Namespace) -> int:
    """Readers while writers add runs; returns the number of problems."""
    ending = threading.Event()
    problems: list[str] = []

    def read(seed: int) -> None:
        client, chance = clients[seed], random.Random(seed)
        while not ending.is_set():
            base, new = chance.sample(ids, 2)
            target = chance.choice(
                ("/runs", "/runs?job=job-07", f"/runs?page={chance.randrange(1, 50)}", "/api/runs?per_page=100",
                 f"/compare?base={base}&new={new}", f"/api/runs/{new}", "/history")
            )  # fmt: skip
            try:
                client.get(target)
            except (OSError, http.client.HTTPException) as error:
                problems.append(str(error))
                return

    clients = [Client(address) for _ in range(args.readers)]
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(args.readers)]
    before = Client(address).ids()
    with get_context("spawn").Pool(args.writers) as pool:
        firsts = range(1_000_000, 1_000_000 + 100_000 * args.writers, 100_000)
        writing = pool.starmap_async(write_and_ask, [(root, address, first, args.seconds) for first in firsts])
        for reader in readers:
            reader.start()
        written = writing.get()
    ending.set()
    for reader in readers:
        reader.join()
    stored = {id for ids, _ in written for id in ids}
    problems += [problem for _, more in written for problem in more]
    after = Client(address).ids()
    print(f"{args.readers} readers while {args.writers} writers stored {len(stored):,} runs in {args.seconds:g} s")
    show("all requests of the readers", [seconds for client in clients for seconds in client.times])
    print(f"runs lost: {len((before | stored) - after)}; errors and stale answers: {len(problems)}")
    for problem in problems[:10]:
        print(f"  {problem}")
    return len(problems) + len((before | stored) - after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="Where to make the store, which stays there and is used again.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.folder or Path(temporary)
        present = [row.id for row in Store(root, say=print).rows()]
        missing = range(len(present), args.runs)
        with get_context("spawn").Pool() as pool:
            parts = pool.starmap(add_runs, [(root, missing[at::8]) for at in range(8)])
        ids = [*present, *(id for part in parts for id in part)]
        print(f"{len(ids):,} runs")
        with server(root) as address:
            measure_alone(address, ids, args.repeats)
            failures = measure_together(root, address, ids, args)
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
