"""The planner's memory compared with fake runs of trainyard's own trainer: `python -m validation.memory [WORD ...]`.

Each line is a stage of a model and a layout: peak bytes of a step as predicted by `predict/memory/native_memory.py`,
and as counted by `train/fake_run/fake_rank.py`, a run of the real code with tensors without data. WORD: only lines that
contain it. A line states the number of layers if the model was cut. Needs torch, no accelerator; some ten minutes on
two cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs import cases
from trainyard.predict.memory import native_memory
from trainyard.recipe import Recipe
from trainyard.train.fake_run import held_memory

_SPLIT = {"sequence_parallel": True, "loss_parallel": True}
_LAYOUT, _RECIPE = set(Layout.__struct_fields__), set(Recipe.__struct_fields__)


class Pair(NamedTuple):
    """A model and a layout. `layers`: 0 for the model's own number. `seq_len`: 1 for images. `micro`: micro-batches per
    step on a rank."""

    model: str
    how: dict[str, Any]
    layers: int = 0
    seq_len: int = 2048
    micro: int = 1

    def job(self) -> Job:
        preset = presets.load(self.model)
        axes: dict[str, Any] = {key: value for key, value in self.how.items() if key in _LAYOUT}
        layout = Layout(**axes)
        settings: dict[str, Any] = {"dtype": "bfloat16"} | {
            key: value for key, value in self.how.items() if key in _RECIPE
        }
        tokens = self.seq_len * settings.get("micro_batch_size", 1) * self.micro * layout.batch_ranks
        recipe = Recipe(seq_len=self.seq_len, tokens_per_step=tokens, **settings)
        if preset.sizes is not None:
            return Job(name=self.model, workload=preset.workload, sizes=preset.sizes, layout=layout, recipe=recipe)
        model = msgspec.convert({"name": self.model, **(preset.model or {})}, Model)
        return Job(model=replace(model, layers=self.layers or model.layers), layout=layout, recipe=recipe)

    def __str__(self) -> str:
        settings = ", ".join(f"{key} {value}" for key, value in self.how.items() if value is not True)
        layers = f" of {self.layers} layers" if self.layers else ""
        each = f"{self.micro} x {self.seq_len}" if self.seq_len > 1 else f"{self.micro} images"
        return f"{self.model}{layers}: {settings or 'one rank'}, {each}"


def pairs() -> Iterator[Pair]:
    for activation_checkpoint in ("none", "full", "selective"):
        recompute = {"activation_checkpoint": activation_checkpoint}
        yield Pair("llama3-8b", {"dp_shard": 8, **recompute})
        yield Pair("llama3-8b", {"dp_shard": 8, **recompute}, seq_len=4096, micro=2)
        yield Pair("llama3-8b", {"tp": 8, **_SPLIT, **recompute})
        yield Pair("llama3-70b", {"dp_shard": 8, "tp": 8, **_SPLIT, **recompute}, layers=20)
        yield Pair(
            "gpt3-175b", {"dp_shard": 4, "tp": 8, "pp": 8, "schedule": "1f1b", **_SPLIT, **recompute}, 32, micro=8
        )
    yield Pair("llama3-8b", {}, layers=8)
    yield Pair("llama3-8b", {}, layers=8, micro=2)
    yield Pair("llama3-8b", {"dp_replicate": 4}, layers=8)
    yield Pair("llama3-8b", {"dp_shard": 4, "zero": 1}, layers=8)
    yield Pair("llama3-8b", {"dp_shard": 4, "zero": 2}, layers=8)
    yield Pair("llama3-8b", {"dp_shard": 64})
    yield Pair("llama3-8b", {"dp_shard": 64, "activation_checkpoint": "full"}, seq_len=8192)
    yield Pair("llama3-8b", {"dp_shard": 64, "activation_checkpoint": "selective", "micro_batch_size": 2}, seq_len=8192)
    yield Pair("llama3-8b", {"dp_replicate": 4, "dp_shard": 8, "activation_checkpoint": "full"}, seq_len=8192)
    yield Pair("llama3-8b", {"dp_shard": 8, "cp": 4, "activation_checkpoint": "full"}, seq_len=16384)
    yield Pair("llama3-8b", {"dp_shard": 8, "dtype": "float32"})
    yield Pair("llama3-8b", {"tp": 4})
    yield Pair("llama3-8b", {"tp": 4, "dp_shard": 4})
    yield Pair("llama3-8b", {"pp": 4, "schedule": "1f1b"}, micro=8)
    yield Pair("llama3-8b", {"pp": 4, "dp_shard": 4, "schedule": "1f1b"}, micro=8)
    yield Pair("llama3-8b", {"pp": 4, "interleave": 2, "schedule": "interleaved"}, micro=8)
    yield Pair("llama3-70b", {"dp_shard": 64, "activation_checkpoint": "full"}, seq_len=8192)
    yield Pair("llama3-70b", {"dp_shard": 16, "tp": 8, "pp": 4, "schedule": "1f1b", **_SPLIT}, seq_len=8192, micro=8)
    deep = {"dp_shard": 16, "tp": 8, "pp": 16, "schedule": "1f1b", "activation_checkpoint": "full", **_SPLIT}
    yield Pair("llama3-405b", deep, layers=128, seq_len=8192, micro=16)
    yield Pair("gpt3-175b", {"tp": 8, "pp": 8, "schedule": "1f1b"}, micro=8)
    yield Pair("qwen3-8b", {"dp_shard": 8}, seq_len=4096)
    yield Pair("gpt2-xl", {"dp_replicate": 2, "micro_batch_size": 8}, seq_len=1024)
    yield Pair("gpt2-xl", {"micro_batch_size": 8}, seq_len=1024)
    yield Pair("gpt2-xl", {"dp_shard": 2, "micro_batch_size": 8, "activation_checkpoint": "full"}, seq_len=1024)
    yield Pair("mixtral-8x7b", {"dp_shard": 8}, layers=8)
    yield Pair("mixtral-8x7b", {"dp_shard": 8, "ep": 8}, layers=8)
    yield Pair("mixtral-8x7b", {"dp_shard": 8, "ep": 8, "activation_checkpoint": "full"}, layers=8)
    yield Pair("mixtral-8x7b", {"dp_shard": 8, "ep": 8, "pp": 4, "schedule": "1f1b"}, seq_len=4096, micro=8)
    yield Pair("deepseek-v3", {"dp_shard": 32}, layers=6, seq_len=4096)
    yield Pair("deepseek-v3", {"dp_shard": 64, "ep": 64, "activation_checkpoint": "full"}, layers=8, seq_len=4096)


def image_models() -> Iterator[Pair]:
    for how in (
        {"micro_batch_size": 32}, {"dp_replicate": 8, "micro_batch_size": 32},
        {"dp_shard": 8, "zero": 1, "micro_batch_size": 32},
        {"tp": 4, "micro_batch_size": 32}, {"tp": 2, "dp_shard": 4, "micro_batch_size": 32},
        *(
            {"dp_shard": 8, "micro_batch_size": 64, "activation_checkpoint": mode}
            for mode in ("none", "full", "selective")
        ),
    ):  # fmt: skip
        yield Pair("vit-l-16", how, seq_len=1)
    yield Pair("vit-h-14", {"dp_shard": 8, "micro_batch_size": 32}, seq_len=1, micro=2)
    for how in (
        {"dp_shard": 8, "micro_batch_size": 32}, {"dp_replicate": 8, "micro_batch_size": 32},
        {"dp_shard": 8, "micro_batch_size": 32, "activation_checkpoint": "full"},
    ):  # fmt: skip
        yield Pair("dit-xl2", how, seq_len=1)
    for how in (
        {"dp_shard": 8, "micro_batch_size": 4}, {"dp_shard": 8, "zero": 2, "micro_batch_size": 2},
        {"tp": 4, "micro_batch_size": 2},
        {"dp_shard": 8, "micro_batch_size": 8, "activation_checkpoint": "full"},
    ):  # fmt: skip
        yield Pair("sd3-medium", how, seq_len=1)
    yield Pair("flux1-dev", {"dp_shard": 16}, seq_len=1)
    yield Pair(
        "flux1-dev", {"dp_shard": 16, "activation_checkpoint": "full", "micro_batch_size": 2}, seq_len=1, micro=2
    )
    yield Pair("flux1-dev", {"tp": 4, "dp_shard": 4, "activation_checkpoint": "full"}, seq_len=1)


class Line(NamedTuple):
    """Bytes of one rank of a pair, and seconds of its fake run."""

    pair: Pair
    rank: int
    predicted: int
    counted: int
    seconds: float

    @property
    def error(self) -> float:
        return self.predicted / self.counted - 1


def predicted(job: Job, rank: int) -> int:
    return round(float(native_memory.peak(cases.of_jobs([job]), first=rank == 0).total[0]))


def compare(pair: Pair) -> list[Line]:
    job = pair.job()
    lines: list[Line] = []
    for rank in held_memory.representative_ranks(job):
        began = time.perf_counter()
        counted = held_memory.measure_rank(job, rank).peak
        lines.append(Line(pair, rank, predicted(job, rank), counted, time.perf_counter() - began))
    return lines


def summary(name: str, some: Sequence[Line]) -> str:
    errors = np.abs([line.error for line in some])
    return (
        f"{name}: {len(some)} ranks of {len({str(line.pair) for line in some})} pairs, mean error "
        f"{100 * errors.mean():.2f} %, median {100 * np.median(errors):.2f} %, worst {100 * errors.max():.2f} %, "
        f"{np.median([line.seconds for line in some]):.0f} s each"
    )


def main() -> None:
    wanted = [pair for pair in (*pairs(), *image_models()) if all(word in str(pair) for word in sys.argv[1:])]
    every: list[Line] = []
    with ThreadPoolExecutor(2) as two:
        for pair, done in [(pair, two.submit(compare, pair)) for pair in wanted]:
            try:
                lines = done.result()
            except BadJob as error:
                print(f"{pair}: {error.message}")
                continue
            for line in lines:
                sizes = f"{line.predicted / 1e9:8.3f} GB, counted {line.counted / 1e9:8.3f} GB"
                print(f"{sizes}, {100 * line.error:+6.2f} %  {pair}, rank {line.rank}", flush=True)
            every += lines
    for name in ("dense", "experts", "images"):
        if some := [line for line in every if kind(line.pair.job()) == name]:
            print(summary(name, some))


def kind(job: Job) -> str:
    return "images" if job.model is None else "experts" if job.model.experts else "dense"


if __name__ == "__main__":
    main()
