"""Arguments of Megatron Core's pretrain_gpt.py, as a job: what somebody runs already.

The names and defaults are those of Megatron-LM's `megatron/training/arguments.py`. How many devices there are does not
stand in them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from trainyard.errors import BadFile, BadInput
from trainyard.job import Job, Layout, Model, Recipe

LARGEST = 1 << 20
"""Bytes a file may have."""
_SAYS_NOTHING = re.compile(
    # Data, tokens, saving, logging, learning rates, seeds, dropout, and what only one value is modelled of.
    r".*-path|.*-file|.*-model|tokenizer.*|data-.*|split|.*save.*|.*load.*|log-.*|.*-log.*|tensorboard.*|wandb.*|eval-.*"
    r"|train-iters|train-samples|lr.*|min-lr.*|weight-decay.*|adam-.*|clip-grad|init-method.*|seed|.*dropout|exit-.*"
    r"|distributed-.*|num-workers|use-flash-attn|attention-backend|use-mcore-models|transformer-impl|no-.*|overlap-.*"
    r"|max-position-embeddings|rotary-.*|use-rotary-position-embeddings|disable-bias-linear|norm-epsilon"
    r"|moe-router-load.*|moe-aux.*|moe-token-dispatcher-type|moe-grouped-gemm|group-query-attention|recompute-method"
    r"|recompute-num-layers|use-cpu-initialization|apply-.*|attention-softmax.*|manual-gc.*|rampup.*|num-iterations"
)

_REMATS: Mapping[str, Literal["none", "full", "op"]] = {"": "none", "full": "full", "selective": "op"}


class Read(NamedTuple):
    """`passed`: arguments that nothing here does something with."""

    job: Job
    passed: tuple[str, ...]


def read(data: bytes, where: str, devices: int) -> Read:
    """Raises `BadFile` for what is no such text, `BadInput` where devices or batch do not divide."""
    return _Arguments(data, where).job(devices)


class _Arguments:
    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        if len(data) > LARGEST:
            raise BadFile(f"{where}: {len(data):,} bytes, more than arguments have.")
        try:
            words = shlex.split(data.decode().replace("\\\n", " "), comments=True)
        except (UnicodeDecodeError, ValueError) as error:
            raise BadFile(f"{where}: not arguments: {error}.") from error
        self.said: dict[str, str] = {}
        name = ""
        for word in words:
            if word.startswith("--"):
                name, _, value = word[2:].partition("=")
                self.said[name] = value
            elif name and not self.said[name]:
                self.said[name] = word
        self.asked: set[str] = set()

    def flag(self, name: str) -> bool:
        self.asked.add(name)
        return name in self.said

    def text(self, name: str) -> str:
        self.asked.add(name)
        return self.said.get(name, "")

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.text(name)
        if not value and default is not None:
            return default
        if not (value.isdecimal() and len(value) < 10 and int(value)):
            missing = f"--{name} is missing" if not value else f"--{name} {value[:40]} is no whole number from one up"
            raise BadFile(f"{self.where}: {missing}.")
        return int(value)

    def job(self, devices: int) -> Read:
        model, seq_len = self._model(), self.whole("seq-length")
        layout = self._layout(devices, model)
        batch, microbatch = self.whole("global-batch-size"), self.whole("micro-batch-size")
        if batch % (layout.batch_ranks * microbatch):
            raise BadInput(
                f"{self.where}: --global-batch-size {batch} % ({layout.batch_ranks} ranks of data parallelism x "
                f"--micro-batch-size {microbatch}) = {batch % (layout.batch_ranks * microbatch)}."
            )
        remat = _REMATS.get(self.text("recompute-granularity"))
        if remat is None:
            said = self.text("recompute-granularity")[:40]
            raise BadFile(f"{self.where}: --recompute-granularity {said} is not known.")
        low, half = self.text("fp8-format") or self.flag("fp8"), self.flag("fp16")
        dtype = "float8" if low else "float16" if half else "bfloat16" if self.flag("bf16") else "float32"
        schedule = "none" if layout.pp == 1 else "interleaved" if layout.interleave > 1 else "1f1b"
        recipe = Recipe(
            seq_len=seq_len, tokens_per_step=batch * seq_len, microbatch=microbatch, dtype=dtype, remat=remat,
            schedule=schedule,
        )  # fmt: skip
        passed = [name for name in self.said if name not in self.asked and not _SAYS_NOTHING.fullmatch(name)]
        return Read(Job(name=model.name, model=model, layout=layout, recipe=recipe), tuple(passed))

    def _model(self) -> Model:
        width, heads = self.whole("hidden-size"), self.whole("num-attention-heads")
        gated = self.flag("swiglu")
        ffn = self.whole("ffn-hidden-size", int(4 * width * 2 / 3 / 64) * 64 if gated else 4 * width)
        head_dim = self.whole("kv-channels", max(1, width // heads))
        experts = self.whole("num-experts", 0)
        expert_ffn = self.whole("moe-ffn-hidden-size", ffn) if experts else 0
        shared = self.whole("moe-shared-expert-intermediate-size", 0)
        said: dict[str, Any] = {
            "layers": self.whole("num-layers"), "width": width, "ffn": ffn, "heads": heads, "head_dim": head_dim,
            "kv_heads": self.whole("num-query-groups", heads), "vocab": self.whole("vocab-size", 50304),
            "experts": experts, "active": self.whole("moe-router-topk", 2) if experts else 0, "expert_ffn": expert_ffn,
            "shared_experts": round(shared / expert_ffn) if experts else 0,
        }  # fmt: skip
        if self.flag("multi-latent-attention"):
            said |= {
                "kv_heads": heads, "q_rank": self.whole("q-lora-rank", 0),
                "kv_rank": self.whole("kv-lora-rank", 32), "head_dim": self.whole("qk-head-dim", 128),
                "rope_dim": self.whole("qk-pos-emb-head-dim", 64), "value_dim": self.whole("v-head-dim", 128),
            }  # fmt: skip
        rotary = self.text("position-embedding-type") == "rope" or "use-rotary-position-embeddings" in self.said
        return Model(
            name=self.where.rpartition("/")[2].rpartition(".")[0] or "theirs", mlp="swiglu" if gated else "gelu",
            norm="rms" if self.text("normalization") == "RMSNorm" else "layer",
            position="rope" if rotary else "learned", tied=not self.flag("untie-embeddings-and-output-weights"), **said,
        )  # fmt: skip

    def _layout(self, devices: int, model: Model) -> Layout:
        tp, pp = self.whole("tensor-model-parallel-size", 1), self.whole("pipeline-model-parallel-size", 1)
        cp, ep = self.whole("context-parallel-size", 1), self.whole("expert-model-parallel-size", 1)
        if devices % (tp * pp * cp):
            raise BadInput(
                f"{self.where}: {devices} devices % (tensor {tp} x pipeline {pp} x context {cp}) = "
                f"{devices % (tp * pp * cp)}.",
                "Give --devices: how many there are does not stand in the arguments.",
            )
        dp = devices // (tp * pp * cp)
        rounds = self.whole("num-virtual-stages-per-pipeline-rank", 1)
        if each := self.whole("num-layers-per-virtual-pipeline-stage", 0):
            rounds = max(1, model.layers // (pp * each))
        divides = self.flag("use-distributed-optimizer")
        split = self.flag("sequence-parallel")
        return Layout(
            dp_shard=dp if divides else 1, dp_replicate=1 if divides else dp, tp=tp, pp=pp, cp=cp, ep=ep,
            interleave=rounds, zero=1 if divides and dp > 1 else 3, sequence_parallel=split and tp > 1,
            loss_parallel=tp > 1,
        )  # fmt: skip
