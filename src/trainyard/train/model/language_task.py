"""The `Task` of training a decoder: next-byte prediction on text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from trainyard.job import Job
from trainyard.train.data import text
from trainyard.train.model.cross_entropy import cross_entropy
from trainyard.train.model.decoder import Decoder
from trainyard.train.model.distributions import Constant, Distribution, Normal
from trainyard.train.model.layers import Tied
from trainyard.train.parallel import context_parallel, expert_parallel, tensor_parallel
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.step.precision import compute_dtype
from trainyard.train.step.profiler_span import span
from trainyard.train.task import Batch, Ends

INITIAL_DEVIATION = 0.02
"""Standard deviation of the initial weights (GPT-2)."""
_RESIDUAL_PROJECTIONS = ("attention.out.weight", "mlp.down.weight", "mlp.experts.down", "mlp.shared.down.weight")


class Language:
    """A `Task`, `HasEnds`, `PipelineTask`, `SplitTask` and `SplitsBatch`. Outputs are logits (B, T, V), targets (B,
    T)."""

    def __init__(self, job: Job) -> None:
        self.model = job.decoder
        self.layout, self.seq_len = job.layout, job.recipe.seq_len
        self.seed = job.recipe.seed
        self.dtype = compute_dtype(job.recipe)

    def module(self) -> Decoder:
        return self.stage(0, 1)

    def stage(self, number: int, stages: int) -> Decoder:
        """Stage `number` of `stages`. Divides the layers evenly over the stages; if they do not divide, the first
        stages have one more."""
        layers = range(self.model.layers)
        layers_per_stage, remaining_layers = divmod(len(layers), stages)
        start = number * layers_per_stage + min(number, remaining_layers)
        stage_layers = layers[start : start + layers_per_stage + (number < remaining_layers)]
        return Decoder(self.model, self.dtype, stage_layers, self.seq_len, first=number == 0, last=number == stages - 1)

    def stage_activations(self, samples: int) -> tuple[Tensor, ...]:
        """Hidden states (B, T, D) of this rank's part of each sequence."""
        parts = self.layout.cp * (self.layout.tp if self.layout.sequence_parallel else 1)
        return (torch.empty(samples, self.seq_len // parts, self.model.hidden_size, dtype=self.dtype, device="meta"),)

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """Applies tp, cp and ep. Sets the module's positions if a rank sees only some of a sequence."""
        layout = meshes.layout
        if layout.tp > 1:
            tensor_parallel.split(module, meshes)
        if layout.cp > 1:
            context_parallel.replace_attention(module, meshes)
        expert_parallel.split(module, meshes)
        if layout.cp > 1 or layout.sequence_parallel:
            positions = context_parallel.positions(self.seq_len, meshes)
            cast(Decoder, module).positions = positions.to(meshes.world.device_type)

    def select_part(self, batch: Batch, meshes: Meshes) -> Batch:
        """Implements `SplitsBatch`: this rank's positions of the inputs and targets, (B, T / cp) each."""
        if meshes.layout.cp == 1:
            return batch
        positions = context_parallel.positions(self.seq_len, meshes).to(batch.inputs[0].device)
        return Batch((batch.inputs[0][:, positions],), (batch.targets[0][:, positions],))

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        return {f"layers.{name}": block for name, block in cast(Decoder, module).layers.items()}

    def ends(self, module: nn.Module) -> Ends:
        """Implements `HasEnds`: the embedding; the last norm and the head. With a tied head all of them form one end,
        since both uses are of one weight."""
        decoder = cast(Decoder, module)
        first = [part for part in (decoder.embed, decoder.place) if part is not None]
        last = [part for part in (decoder.norm, decoder.head) if part is not None]
        return Ends(last=[*first, *last]) if isinstance(decoder.head, Tied) else Ends(first, last)

    def distribution(self, name: str, shape: torch.Size) -> Distribution:
        """GPT-2's initialization: normal with standard deviation 0.02, divided by sqrt(2 * layers) for projections into
        the residual stream; norms are one, biases zero."""
        if len(shape) == 1:
            return Constant(0.0 if name.endswith("bias") else 1.0)
        into_residual = name.endswith(_RESIDUAL_PROJECTIONS)
        deviation = INITIAL_DEVIATION / (2 * self.model.layers) ** 0.5 if into_residual else INITIAL_DEVIATION
        return Normal(deviation)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """Cross-entropy in nats per token. The backward pass overwrites `outputs`."""
        with span("loss"):
            group, first_class, logits_BTV = None, 0, outputs
            if isinstance(outputs, DTensor):
                logits_BTV = outputs.to_local()
                if outputs.placements != (Replicate(),):  # this rank's part of the vocabulary, equal parts
                    group = outputs.device_mesh.get_group()
                    first_class = outputs.device_mesh.get_local_rank() * logits_BTV.shape[-1]
            return cross_entropy(logits_BTV.flatten(0, 1), targets[0].flatten(), group, first_class)


class Bytes:
    """`Samples` of a text: inputs are bytes 0 to T - 1 of a sequence, targets bytes 1 to T."""

    def __init__(self, job: Job) -> None:
        self.recipe = job.recipe
        self.text = text.read(job.recipe.dataset)
        self.source, self.sha256 = self.text.source, self.text.sha256

    def batch(self, step: int, indices: range) -> Batch:
        bytes_BT = torch.from_numpy(text.batch(self.text, self.recipe.seq_len, self.recipe.seed, step, indices)).long()
        return Batch((bytes_BT[:, :-1],), (bytes_BT[:, 1:],))
