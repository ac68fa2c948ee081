"""What a rank says of itself at its end, in `facts/rank<N>.json` of the run's folder. No torch here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.machine import Claim
from trainyard.redact import redact_json
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import rank_files


class RankFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rank: its device, its text and weights by digest, its matmul rate, its build of torch.

    `parameters` and `model_flops` (a step, over all ranks, nothing recomputed) are of the whole model.
    `digests`: sha256 of `text`, `weights_initial` and `weights_final`, or why there is none of `weights`.
    `experts`: tokens of each expert in the last step, over all ranks, by the name of the layer; of this rank's layers.
    `clocks`: what rank 0's vendor said right after the warm-up steps.
    """

    rank: int
    local_rank: int
    world: int
    vendor: str
    device: str
    backend: str
    """`gloo`, `nccl` (which is RCCL's name too), or empty for a rank alone."""
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
    """Under its name only when whole."""
    path = folder / "facts" / f"rank{facts.rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, redact_json(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n"))


def read_facts(folder: Path) -> list[RankFacts]:
    """Of the ranks that came to their end, in rank order. Raises `BadFile`."""
    return [_read(path) for path in rank_files(folder / "facts", ".json")]


def _read(path: Path) -> RankFacts:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RankFacts)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not a rank's facts: {error}.") from error
