"""Provenance of a run: code, machine and environment, to detect differences between two runs that are compared."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from msgspec.structs import replace

from trainyard.plugins import Vendor
from trainyard.record import DeviceSeen, Provenance
from trainyard.redact import is_secret, redact
from trainyard.run.local.rank_facts import RankFacts
from trainyard.units import show_size

_PACKAGES = ("trainyard", "numpy", "msgspec", "click", "rich")
_TORCHLIKE = re.compile(r"torch|triton|nvidia[-_]|^nccl|rocm|amdsmi|neuron|transformer[-_]engine|flash[-_]attn|apex")
_KEPT = re.compile(
    r"(CUDA|CUBLAS|CUBLASLT|CUDNN|NVTE|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|KMP|GOMP|OPENBLAS|HIP|HIPBLASLT"
    r"|TENSILE|HSA|ROCR|ROCBLAS|MIOPEN|RCCL|GLOO|UCX|FI|NEURON|XLA|TRAINYARD|SLURM)_"
    r"|(NVIDIA_TF32_OVERRIDE|LD_PRELOAD|MALLOC_CONF|PYTHONHASHSEED|PYTHONOPTIMIZE)\Z"
)


def gather(
    devices: Sequence[DeviceSeen], vendors: Mapping[str, Vendor], rank_variables: Mapping[str, str]
) -> Provenance:
    """Gather the provenance known before a rank starts: code, packages, drivers, devices, environment, clocks and host.

    `devices`: those that the run uses; `vendors`: name -> vendor plugin; `rank_variables`: variables (name -> value)
    that the launcher adds for the ranks.
    """
    drivers = {f"{d.vendor}.{d.index}": d.facts["driver"] for d in devices if "driver" in d.facts}
    return Provenance(
        code=code(Path.cwd()),
        packages=packages(),
        driver=drivers,
        devices=tuple(devices),
        environment=environment({**rank_variables, **os.environ}),
        clocks=telemetry(vendors),
        host=host(vendors),
    )


def telemetry(vendors: Mapping[str, Vendor]) -> dict[str, str]:
    """Current clocks, power and load, by `<vendor>.<device>.<fact>`."""
    return {f"{name}.{fact}": value for name, vendor in vendors.items() for fact, value in vendor.telemetry().items()}


def with_facts(provenance: Provenance, facts: Sequence[RankFacts]) -> Provenance:
    """Return `provenance` with the first rank's torch build, seeds, and digests of text and weights. `facts`: by rank.

    The devices become those that trained. A digest that differs on another rank is also stored under that rank's name:
    all should agree.
    """
    if not facts:
        return provenance
    first_rank = facts[0]
    digests = dict(first_rank.digests)
    for fact in facts[1:]:
        digests |= {
            f"{name}.rank{fact.rank}": value for name, value in fact.digests.items() if value != digests.get(name)
        }
    return replace(
        provenance,
        devices=_trained_on(provenance.devices, facts),
        clocks=provenance.clocks
        | {f"at_work.{first_rank.vendor}.{name}": value for name, value in first_rank.clocks.items()},
        torch_build=first_rank.torch_build,
        seeds=first_rank.seeds,
        digests=digests,
        text=first_rank.text,
    )


def _trained_on(reported_devices: Sequence[DeviceSeen], facts: Sequence[RankFacts]) -> tuple[DeviceSeen, ...]:
    """The devices that the ranks used: as the driver reports them (`reported_devices`) if the names match, else as
    torch does (a slice of a device). `facts`: of each rank, with its vendor, device name and rank on its host."""
    # Keys: (vendor, index of the device on its host, name).
    device_by_key = {(device.vendor, device.index, device.name): device for device in reported_devices}
    used = {(fact.vendor, 0 if fact.vendor == "cpu" else fact.local_rank, fact.device) for fact in facts}
    return tuple(
        device_by_key.get(device) or DeviceSeen(vendor=device[0], index=device[1], name=device[2])
        for device in sorted(used)
    )


def code(folder: Path) -> dict[str, str]:
    """`sha` of the git checkout that contains `folder`, and whether it is `dirty`; empty outside one or without git."""
    sha = _git(folder, "rev-parse", "HEAD")
    if sha is None:
        return {}
    changes = _git(folder, "status", "--porcelain")
    return {"sha": sha, "dirty": "unknown" if changes is None else "yes" if changes else "no"}


def _git(folder: Path, *words: str) -> str | None:
    """Output of a git command in `folder`; None if it fails, takes over 20 s, or git is missing."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # a query must not write to the user's index
    try:
        result = subprocess.run(
            ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def packages() -> dict[str, str]:
    """Versions of trainyard, its dependencies, and the packages around torch."""
    versions = {name.lower(): dist.version for dist in metadata.distributions() if (name := dist.metadata["Name"])}
    kept = {name: version for name, version in versions.items() if name in _PACKAGES or _TORCHLIKE.search(name)}
    return {"python": platform.python_version(), **dict(sorted(kept.items()))}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that affect training, redacted, and without those whose name marks them as secrets."""
    return {
        name: redact(value) for name, value in sorted(variables.items()) if _KEPT.match(name) and not is_secret(name)
    }


def host(vendors: Mapping[str, Vendor]) -> dict[str, str]:
    """Facts of the host (name -> value): name, kernel, processors, memory, and the container's limits on them. Unknown
    ones are absent. `vendors`: by name."""
    cpu = vendors["cpu"].devices()[0]
    facts = {
        "cpu": cpu.name,
        **{f"cpu_{fact}": value for fact, value in cpu.facts.items()},
        "memory": show_size(cpu.memory_bytes),
        "name": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split("\n")[0],
        "cgroup_cpu": _read("/sys/fs/cgroup/cpu.max"),
        "transparent_hugepage": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
    }
    return {name: value for name, value in facts.items() if value}


def _read(path: str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""
