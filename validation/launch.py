"""What is written for other frameworks, given to their own readers: `python -m validation.launch [MOST]`.

Of five models on 32 devices, in every number format, at least MOST (100) of the layouts that the search may offer,
evenly chosen, are written and read by the framework's own code, as it reads what it is started with. Needs those beside
trainyard (torchtitan 0.2.2, deepspeed 0.19.8, megatron-core 0.16.1), no accelerator; what is not installed is said. Of
Megatron-LM's arguments only the pipelines' stages are read: their parser is in no package.
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

from trainyard.job import Job, Model
from trainyard.models import presets
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput

MODELS = ("llama3-8b", "qwen3-8b", "deepseek-v3", "mixtral-8x7b", "gpt3-175b")
DEVICES, BATCH, SEQ_LEN = 32, 64, 4096
Take = Callable[[str, Job], None]


def titan() -> Take:
    """torchtitan's configuration manager, its meshes, and how it cuts a model into stages."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

    manager, path = ConfigManager(), Path(tempfile.mkdtemp()) / "job.toml"

    def take(text: str, job: Job) -> None:
        path.write_text(text)
        config = manager.parse_args(["--job.config_file", str(path)])
        said, training, layout, layers = config.parallelism, config.training, job.layout, job.decoder.layers
        mesh = ParallelDims(
            said.data_parallel_replicate_degree, said.data_parallel_shard_degree, said.context_parallel_degree,
            said.tensor_parallel_degree, said.pipeline_parallel_degree, said.expert_parallel_degree,
            said.expert_tensor_parallel_degree, layout.ranks,
        )  # fmt: skip
        _equal(mesh.dp_shard * mesh.cp * mesh.tp % (mesh.ep * mesh.etp), 0, "experts' ranks")
        _equal(training.global_batch_size % (training.local_batch_size * layout.batch_ranks), 0, "batch")
        alone = mesh.dp_replicate > 1 and mesh.dp_shard * mesh.cp == 1
        _equal(alone and mesh.tp * mesh.pp > 1, False, "replicas alone")
        if layout.pp == 1:
            return
        single = issubclass(get_schedule_class(said.pipeline_parallel_schedule), PipelineScheduleSingle)
        ends = said.pipeline_parallel_first_stage_less_layers, said.pipeline_parallel_last_stage_less_layers
        each = said.pipeline_parallel_layers_per_stage
        many = layout.pp * (1 if single else 2) if each is None else math.ceil((layers + sum(ends)) / each)
        _equal(many, layout.pp * layout.interleave, "stages")
        parts = generate_llm_fqn_per_model_part(many, layers, *ends)
        _equal(sum(name.startswith("layers.") for part in parts for name in part), layers, "layers of stages")

    return take


def speed() -> Take:
    """DeepSpeed's configuration, as of one of so many data-parallel ranks."""
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
    """Megatron Core's layouts of pipeline stages."""
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    def take(text: str, job: Job) -> None:
        name = "--pipeline-model-parallel-layout "
        said = [line.removeprefix(name).strip("'") for line in text.splitlines() if line.startswith(name)]
        for layout in said:
            PipelineParallelLayerLayout(layout, job.layout.pp).validate_layer_layout(job.decoder.layers, 0)

    return take


def _equal(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        raise ValueError(f"{what}: {found}, not {wanted}")


def offered(framework: str, name: str, dtype: str, most: int) -> Iterator[Job]:
    runner = FRAMEWORKS[framework]
    model = msgspec.convert({"name": name, **presets.take(name, "model").keys}, Model)
    wanted = PlannerInput(model, DEVICES, 8, BATCH, SEQ_LEN, dtype)
    every = runner.layouts(wanted)
    for place in range(0, len(every), max(1, len(every) // most)):
        yield layout_space.job_of(wanted, every.row(place), runner.keeps.between)


def main(most: int) -> int:
    logging.disable(logging.CRITICAL)
    wrong = whole = 0
    print("| framework | model | layouts | refused |\n|---|---|---|---|")
    for framework, opened in {"torchtitan": titan, "deepspeed": speed, "megatron": megatron}.items():
        try:
            take = opened()
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
                    except (Exception, SystemExit) as error:  # theirs raise what they like
                        refused[f"{type(error).__name__}: {error}".splitlines()[0][:100]] += 1
            wrong, whole = wrong + sum(refused.values()), whole + tried
            print(f"| {framework} | {name} | {tried} | {sum(refused.values())} {dict(refused.most_common(2)) or ''} |")
    print(f"\n{whole:,} files, {wrong:,} refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
