"""`python -m benchmarks.checkpoint`: the time that a step waits for saving its state, in one process; then the losses
of a training run saved on four ranks and resumed on four, two and one.

Sync and async saves alternate, so that both see the same machine state; the ratio is that of their medians. The stall
of an async save includes the time for which the optimizer of the next step waits for the copies of the state. Also
measures steps that run while the state is copied and written, which shares the cores with them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from trainyard import plugins, units
from trainyard.job import Checkpoint, Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore

_TEXT = str(Path(plugins.__file__).parent / "words.py")
_TINY = Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
_SAVED, _UNTIL = 2, 6


def a_job(model: Model, layout: Layout | None = None, every: int = 0) -> Job:
    recipe = Recipe(seq_len=32, tokens_per_step=256, learning_rate=1e-2, dataset=_TEXT)
    return Job(
        model=model, layout=layout or Layout(), recipe=recipe, checkpoint=Checkpoint(interval=every, keep_latest_k=2)
    )


def stalls(width: int, saves: int) -> None:
    import torch

    from trainyard.train import process_group as ranks
    from trainyard.train.checkpoint.checkpoint_saver import Saver

    torch.set_num_threads(1)  # threads that wait for each other crawl on a machine with other work
    here = ranks.find_ranks(ranks.detect_vendor())
    model = Model(layers=4, hidden_size=width, ffn_hidden_size=4 * width, heads=8, kv_heads=8, head_dim=width // 8)
    plain = a_job(model)
    training = plugins.load("workloads", "transformer").build(plain, here.vendor)
    timings: dict[str, list[float]] = {"sync": [], "async": [], "step": [], "step while writing": []}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TRAINYARD_STORE")) as folder:
        saver = Saver(Path(folder), plain, here, training)
        step = 0
        for number in range(saves + 1):  # the first of each is warm-up
            for mode in ("sync", "async"):
                training(step)
                before = saver.stalled_ns
                saver.job = Job(**{**_fields(plain), "checkpoint": Checkpoint(interval=1, keep_latest_k=1, mode=mode)})
                saver.save_if_due(step)
                began = time.perf_counter()
                training(step + 1)
                if number:
                    timings[mode].append((saver.stalled_ns - before) / 1e6)
                    which = "step while writing" if mode == "async" else "step"
                    timings[which].append((time.perf_counter() - began) * 1e3)
                step += 2
                saver.save_now(saver.saved)  # what is in flight ends before the next is timed
        size = sum(file.bytes for file in CheckpointStore(Path(folder)).read(saver.saved).files.values())
        saver.close()
    where = torch.cuda.get_device_name() if here.device.type == "cuda" else "one core"
    print(f"state {units.show_size(size)}, one rank, {where}, {saves} saves of each kind")
    for kind, values in timings.items():
        print(f"  {kind:20} {median(values):9.1f} ms  ({min(values):.1f} to {max(values):.1f})")
    print(f"  async / sync         {100 * median(timings['async']) / median(timings['sync']):9.2f} %")


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def losses() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = _trained(a_job(_TINY, Layout(dp_shard=4), every=3), folder)
        shutil.rmtree(CheckpointStore(Path(folder)).folder(_UNTIL - 1))
        print(
            f"\nsaved on 4 ranks after step {_SAVED}; losses of the steps after it, and the largest relative difference"
        )
        print(f"  {'never interrupted':20} {_show(whole[_SAVED + 1 :])}")
        for ranks in (4, 2, 1):
            rest = _trained(a_job(_TINY, Layout(dp_shard=ranks)), folder)
            worst = max(abs(loss - other) / other for loss, other in zip(rest, whole[_SAVED + 1 :]))
            print(f"  {f'resumed on {ranks}':20} {_show(rest)}  {worst:.1e}")


def _show(values: list[float]) -> str:
    return "  ".join(f"{value:.8f}" for value in values)


def _trained(job: Job, run: str) -> list[float]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainyard.train.step.trainer", "trainyard.train.checkpoint.checkpoint_saver"])
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as meet:
        ranks = [
            context.Process(target=_rank, args=(job, rank, run, meet, results)) for rank in range(job.layout.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return results.get()


def _rank(job: Job, rank: int, run: str, meet: str, results: Any) -> None:
    import torch

    from trainyard.train import process_group as ranks
    from trainyard.train.checkpoint.checkpoint_saver import Saver

    torch.set_num_threads(1)
    world = str(job.layout.ranks)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
    here = ranks.find_ranks("cpu")
    with ranks.process_group_context(here, f"file://{meet}/meet"):
        training = plugins.load("workloads", job.workload).build(job, "cpu")
        saver = Saver(Path(run), job, here, training)
        losses: list[float] = []
        for step in range(saver.resume(), _UNTIL):
            losses.append(training(step).loss)
            saver.save_if_due(step)
        saver.close()
        if rank == 0:
            results.put(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=384, help="of the model that is saved; state grows as its square")
    parser.add_argument("--saves", type=int, default=5)
    args = parser.parse_args()
    stalls(args.width, args.saves)
    losses()


if __name__ == "__main__":
    main()
