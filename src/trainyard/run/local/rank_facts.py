"""The facts that a rank records at its end, in `facts/rank<N>.json` of the run's folder. No torch here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.machine import Claim
from trainyard.redact import redact_json
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import rank_files


class RankFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Facts of one rank: its device, digests of its text and weights, its matmul rate, its torch build.

    `parameters`: parameter count of the whole model. `model_flops`: FLOPs of the whole model per step, over all ranks,
    without recomputation. `digests`: sha256 of `text`, `weights_initial` and `weights_final`, or why there is none of
    `weights`. `experts`: for this rank's layers, by layer name, the tokens of each expert in the last step over all
    ranks. `clocks`: telemetry of rank 0's vendor right after the warm-up steps, `<device>.<fact>` -> value with its
    unit. `seeds`: random seeds by what they are for. `torch_build`: version and build configuration by field.
    """

    rank: int
    local_rank: int
    world: int
    vendor: str
    device: str
    backend: str
    """`gloo`, `nccl` (also for RCCL), or empty for a single rank."""
    threads: int
    text: str
    digests: dict[str, str]
    seeds: dict[str, int]
    parameters: int
    model_flops: int
    matmul_rate: Claim
    torch_build: dict[str, str]
    experts: dict[str, list[int]] = {}
    clocks: dict[str, str] = {}


def write_facts(folder: Path, facts: RankFacts) -> None:
    """Write the facts of a rank to its file in the run's folder, without secrets; it is never visible half-written."""
    path = folder / "facts" / f"rank{facts.rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, redact_json(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n"))


def read_facts(folder: Path) -> list[RankFacts]:
    """Read the facts of the ranks that reached their end, in rank order. Raises `BadFile`."""
    return [_read(path) for path in rank_files(folder / "facts", ".json")]


def _read(path: Path) -> RankFacts:
    """Read the facts of one rank. Raises `BadFile`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RankFacts)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not a rank's facts: {error}.") from error
