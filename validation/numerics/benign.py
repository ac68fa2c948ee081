"""Pairs of commands that compute the same with other rounding: a comparison must not raise an alarm."""

from __future__ import annotations

from typing import NamedTuple

from validation.numerics.fault import SCRIPTS, launcher

SEEDS = 10
"""Pairs of each set-up. Each seed has other weights, data and shapes."""


class Setup(NamedTuple):
    """`reference`, `suspect`: arguments of scripts/benign_training.py. `ranks`: of the suspect."""

    id: str
    title: str
    model: str
    suspect: tuple[str, ...]
    reference: tuple[str, ...] = ()
    ranks: int = 1

    def commands(self, python: str, seed: int) -> tuple[list[str], list[str]]:
        """The commands of the reference and of the suspect."""
        script = [str(SCRIPTS / "benign_training.py"), self.model, "--seed", str(seed)]
        return [python, *script, *self.reference], [python, *launcher(self.ranks), *script, *self.suspect]


SETUPS: tuple[Setup, ...] = (
    Setup("bfloat16", "float32, bfloat16", "transformer", ("--dtype", "bfloat16")),
    Setup("inductor", "eager, Inductor", "transformer", ("--compile",)),
    Setup("tp", "TP 1, 2", "transformer", ("--parallel", "tp"), ranks=2),
    Setup("ddp", "DDP 1, 2", "transformer", ("--parallel", "ddp"), ranks=2),
    Setup("fsdp", "FSDP 1, 2", "transformer", ("--parallel", "fsdp"), ranks=2),
    Setup("flash", "math, flash attention", "transformer", ("--attention", "flash"), ("--attention", "math")),
    Setup("accumulation", "1, 2 micro-batches", "transformer", ("--micro-batches", "2")),
    Setup("checkpointing", "activation checkpointing off, on", "transformer", ("--checkpointing",)),
    Setup("packing", "padded, packed samples", "transformer", ("--packed",)),
    Setup("layer_norm", "layer norm fused, decomposed", "transformer", ("--norm", "decomposed")),
    Setup("channels_last", "NCHW, channels-last memory", "conv_net", ("--channels-last",)),
    Setup("onednn", "oneDNN on, off", "conv_net", ("--no-onednn",)),
    Setup("unfold", "convolution direct, as a matrix product", "conv_net", ("--convolution", "matrix")),
    Setup("float64", "float32, float64", "conv_net", ("--dtype", "float64")),
    Setup("fused_adamw", "AdamW for-loop, fused", "conv_net", ("--optimizer", "fused")),
    Setup("foreach_adamw", "AdamW for-loop, foreach", "recommender", ("--optimizer", "foreach")),
    Setup("split_k", "product whole, in two parts", "recommender", ("--product", "chunked")),
    Setup("einsum", "matmul, einsum", "recommender", ("--interaction", "einsum")),
    Setup("sum_order", "sums forward, backward", "recommender", ("--sum-order", "backward")),
    Setup("unet_micro_batches", "1, 4 micro-batches", "unet", ("--micro-batches", "4")),
    Setup("group_norm", "group norm fused, decomposed", "unet", ("--norm", "decomposed")),
    Setup("unet_flash", "attention explicit, flash", "unet", ("--attention", "flash")),
    Setup("unet_inductor", "eager, Inductor", "unet", ("--compile",)),
    Setup("lstm_cells", "LSTM fused, position by position", "recurrent", ("--cells",)),
    Setup("threads", "1, 2 threads", "recurrent", ("--threads", "2")),
    Setup("lstm_bfloat16", "float32, bfloat16", "recurrent", ("--dtype", "bfloat16")),
)
