"""Generation and steps of reinforcement learning as predicted and as published: `python -m validation.rollout`.

The rows are in `validation/rollout_rows/rollout.toml`, with their sources. Nothing is fitted to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from rich.console import Console

from trainyard import machine as machines
from trainyard.api.plan_post_training import plan_rollout, require_decoder
from trainyard.api.plan_request import read_request
from trainyard.errors import TrainyardError
from trainyard.formats import toml
from trainyard.predict.post_training import decode_cost
from trainyard.predict.post_training.generation_search import EngineOptions, generate
from trainyard.predict.post_training.rollout_workload import RolloutWorkload
from trainyard.report.render.terminal import print_table
from trainyard.report.view.view import Column, Table

ROWS = Path(__file__).parent / "rollout_rows" / "rollout.toml"
ROOT = Path(__file__).parent.parent
SOFTWARE = "megatron"
STEPS_SOURCE = "NVIDIA-NeMo/RL@06beed9 docs/about/performance-summary.md, v0.4"


class GenerationRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published generation on one replica: `seconds`, or output tokens per second of all `requests`."""

    name: str
    model: str
    machine: str
    tp: int
    requests: int
    prompt_tokens: int
    response_tokens: int
    source: str
    seconds: float = 0.0
    output_per_s: float = 0.0

    @property
    def published_s(self) -> float:
        return self.seconds or self.requests * self.response_tokens / self.output_per_s


class StepRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published step of GRPO. `longest`: most tokens of a sequence, prompt and response; `memory_share`: vLLM's
    `gpu_memory_utilization`."""

    name: str
    model: str
    mode: str
    devices: int
    prompts: int
    samples: int
    prompt_tokens: int
    response_tokens: int
    longest: int
    train_batch: int
    memory_share: float
    generation_tp: int
    fix: tuple[str, ...]
    seconds: float
    generation_devices: int | None = None


class PublishedRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    generation: tuple[GenerationRow, ...]
    steps: tuple[StepRow, ...]


class Compared(NamedTuple):
    """A row with its predicted seconds; None with the `reason` if it has no prediction."""

    name: str
    published_s: float
    predicted_s: float | None
    parts: str = ""
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Published over predicted."""
        return self.published_s / self.predicted_s if self.predicted_s else None


def read_rows() -> PublishedRows:
    return msgspec.convert(toml.loads(ROWS.read_text("utf-8")), PublishedRows)


def predict_generation(row: GenerationRow) -> float:
    """Predicted seconds of a row of generation."""
    model = require_decoder(read_request(row.model, None, None, None).model)
    workload = RolloutWorkload(
        prompts=row.requests, samples=1, prompt_tokens=row.prompt_tokens, response_tokens=row.response_tokens,
        max_response_tokens=row.response_tokens, length_cv=0.0,
    )  # fmt: skip
    machine = decode_cost.generation_model(machines.load(row.machine), SOFTWARE)
    generation = generate(model, machine, row.tp, 1, workload, EngineOptions(memory_share=1.0))
    if generation is None:
        raise ValueError(f"{row.name} does not fit")
    return generation.seconds


def predict_step(row: StepRow) -> Compared:
    """The row with the predicted step in its mode."""
    name, model = f"{row.name}, {row.mode}", ROOT / row.model
    try:
        plan = plan_rollout(
            model if model.is_file() else row.model, machine="h100", devices=row.devices, prompts=row.prompts,
            samples=row.samples, prompt_tokens=row.prompt_tokens, response_tokens=row.response_tokens,
            max_response_tokens=row.longest - row.prompt_tokens, train_batch=row.train_batch,
            memory_share=row.memory_share, generation_tp=row.generation_tp, generation_devices=row.generation_devices,
            framework="megatron", fix=row.fix,
        )  # fmt: skip
    except TrainyardError as error:
        return Compared(name, row.seconds, None, reason=error.message)
    mode = next(each for each in plan.modes if each.name == row.mode)
    if mode.step_ns is None:
        return Compared(name, row.seconds, None, reason=mode.reason)
    parts = ", ".join(f"{part.name} {(part.ns + part.hidden_ns) / 1e9:.0f}" for part in mode.parts)
    return Compared(name, row.seconds, mode.step_ns / 1e9, parts)


def table(title: str, compared: list[Compared], source: str) -> Table:
    """Predicted next to published, with the ratios."""
    ratios = [each.ratio for each in compared if each.ratio]
    mean = float(np.exp(np.mean(np.log(ratios))))
    return Table(
        title=title,
        notes=(
            f"Ratio: published over predicted; geometric mean {mean:.2f}, from {min(ratios):.2f} to "
            f"{max(ratios):.2f}. Source: {source}.",
            *(f"{each.name}: {each.reason}" for each in compared if each.reason),
        ),
        columns=(
            Column(title="", prose=True), Column(title="published, s", digits=2, id=True),
            Column(title="predicted, s", digits=2, id=True), Column(title="ratio", digits=2, id=True),
            Column(title="parts, s", prose=True),
        ),
        rows=tuple((each.name, each.published_s, each.predicted_s, each.ratio, each.parts) for each in compared),
    )  # fmt: skip


def main() -> None:
    rows, screen = read_rows(), Console(width=120)
    generation = [Compared(row.name, row.published_s, predict_generation(row)) for row in rows.generation]
    sources = "; ".join(dict.fromkeys(row.source for row in rows.generation))
    print_table(table("Generation", generation, sources), screen)
    screen.print()
    print_table(table("Steps of GRPO", [predict_step(row) for row in rows.steps], STEPS_SOURCE), screen)


if __name__ == "__main__":
    main()
