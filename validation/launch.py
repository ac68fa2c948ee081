"""Parse written configurations with the code of each framework: `python -m validation.launch [MOST]`.

For five models on 32 devices, in every dtype, at least MOST (100) evenly spaced layouts of the search space are
written, and read by the framework's own code as at its start. Needs torchtitan 0.2.2, deepspeed 0.19.8 and
megatron-core 0.16.1 next to trainyard, but no accelerator; frameworks that are not installed are reported. Of
Megatron-LM's arguments only the pipeline layout is read, because no package contains their parser.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from trainyard.job import Job
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput

MODELS = ("llama3-8b", "qwen3-8b", "deepseek-v3", "mixtral-8x7b", "gpt3-175b")
DEVICES, BATCH, SEQ_LEN = 32, 64, 4096
Take = Callable[[str, Job], None]


def titan() -> Take:
    """A check with torchtitan's configuration manager, its meshes, and its division of a model into stages."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

    manager, path = ConfigManager(), Path(tempfile.mkdtemp()) / "job.toml"

    def take(text: str, job: Job) -> None:
        path.write_text(text)
        config = manager.parse_args(["--job.config_file", str(path)])
        degrees, training, layout, layers = config.parallelism, config.training, job.layout, job.decoder.layers
        mesh = ParallelDims(
            degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree,
            degrees.context_parallel_degree, degrees.tensor_parallel_degree, degrees.pipeline_parallel_degree,
            degrees.expert_parallel_degree, degrees.expert_tensor_parallel_degree, layout.ranks,
        )  # fmt: skip
        _equal(mesh.dp_shard * mesh.cp * mesh.tp % (mesh.ep * mesh.etp), 0, "experts' ranks")
        _equal(training.global_batch_size % (training.local_batch_size * layout.batch_ranks), 0, "batch")
        replicated = mesh.dp_replicate > 1 and mesh.dp_shard * mesh.cp == 1
        _equal(replicated and mesh.tp * mesh.pp > 1, False, "replicas alone")
        if layout.pp == 1:
            return
        single = issubclass(get_schedule_class(degrees.pipeline_parallel_schedule), PipelineScheduleSingle)
        ends = degrees.pipeline_parallel_first_stage_less_layers, degrees.pipeline_parallel_last_stage_less_layers
        each = degrees.pipeline_parallel_layers_per_stage
        stages = layout.pp * (1 if single else 2) if each is None else math.ceil((layers + sum(ends)) / each)
        _equal(stages, layout.pp * layout.interleave, "stages")
        parts = generate_llm_fqn_per_model_part(stages, layers, *ends)
        _equal(sum(name.startswith("layers.") for part in parts for name in part), layers, "layers of stages")

    return take


def speed() -> Take:
    """A check with DeepSpeed's configuration, as read by one of the data-parallel ranks."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import config as theirs

    class Rank:
        def get_rank(self) -> int:
            return 0

    theirs.dist = Rank()

    def take(text: str, job: Job) -> None:
        class Grid:
            def get_data_parallel_world_size(self) -> int:
                return job.layout.batch_ranks

        config = theirs.DeepSpeedConfig(json.loads(text), mpu=Grid())
        _equal(config.train_batch_size, job.batch, "batch")
        _equal(config.gradient_accumulation_steps, job.accumulate, "accumulation")
        _equal(max(1, config.tensor_parallel_config.autotp_size), job.layout.tp, "tensor parallelism")
        stage = job.layout.zero if job.layout.dp_shard > 1 else 0
        _equal(int(config.zero_optimization_stage), stage, "stage")

    return take


def megatron() -> Take:
    """A check with Megatron Core's pipeline layouts."""
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    def take(text: str, job: Job) -> None:
        name = "--pipeline-model-parallel-layout "
        layouts = [line.removeprefix(name).strip("'") for line in text.splitlines() if line.startswith(name)]
        for layout in layouts:
            PipelineParallelLayerLayout(layout, job.layout.pp).validate_layer_layout(job.decoder.layers, 0)

    return take


def _equal(actual: Any, expected: Any, name: str) -> None:
    if actual != expected:
        raise ValueError(f"{name}: {actual}, not {expected}")


def offered(framework: str, name: str, dtype: str, most: int) -> Iterator[Job]:
    runner = FRAMEWORKS[framework]
    model = msgspec.convert({"name": name, **presets.take(name, "model").keys}, Model)
    wanted = PlannerInput(model, DEVICES, 8, BATCH, SEQ_LEN, dtype)
    layouts = runner.layouts(wanted)
    for index in range(0, len(layouts), max(1, len(layouts) // most)):
        yield layout_space.job_of(wanted, layouts.row(index), runner.keeps)


def main(most: int) -> int:
    logging.disable(logging.CRITICAL)
    wrong = total = 0
    print("| framework | model | layouts | refused |\n|---|---|---|---|")
    for framework, checker in {"torchtitan": titan, "deepspeed": speed, "megatron": megatron}.items():
        try:
            take = checker()
        except ImportError as error:
            print(f"| {framework} | not installed: {error.name} | | |")
            continue
        for name in MODELS:
            refused: Counter[str] = Counter()
            tried = 0
            for dtype in FRAMEWORKS[framework].dtypes:
                for job in offered(framework, name, dtype, most):
                    tried += 1
                    try:
                        take(FRAMEWORKS[framework].write_config(job), job)
                    except (Exception, SystemExit) as error:  # a framework may raise anything
                        refused[f"{type(error).__name__}: {error}".splitlines()[0][:100]] += 1
            wrong, total = wrong + sum(refused.values()), total + tried
            print(f"| {framework} | {name} | {tried} | {sum(refused.values())} {dict(refused.most_common(2)) or ''} |")
    print(f"\n{total:,} files, {wrong:,} refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
