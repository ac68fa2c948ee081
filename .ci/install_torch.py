"""Installs torch into the environment of this Python: .venv/bin/python .ci/install_torch.py constraints.txt

On Linux without an accelerator, the CPU build is chosen if pip's indexes offer it. Otherwise, if the build that pip
chooses brings NVIDIA's libraries, prints what is about to be downloaded and how to choose another build.
"""

import glob
import json
import re
import subprocess
import sys
from pathlib import Path

ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd", "/dev/neuron[0-9]*")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def pip(*arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """`quiet`: without pip's messages, which `stdout` of the result holds only if pip was asked for a report."""
    command = [sys.executable, "-m", "pip", "install", "-q", "-c", sys.argv[1], *arguments]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        check=False,
    )


def nvidia_packages() -> list[str]:
    """Names and versions of NVIDIA's packages that pip would install with torch."""
    answer = pip("--dry-run", "--report", "-", "torch", quiet=True)
    if answer.returncode:
        return []
    packages = [item["metadata"] for item in json.loads(answer.stdout)["install"]]
    return [f"{package['name']} {package['version']}" for package in packages if "nvidia" in package["name"]]


def main() -> int:
    version = re.search(r"^torch==(\S+)", Path(sys.argv[1]).read_text("utf-8"), re.MULTILINE)
    if version is None:
        sys.exit(f"{sys.argv[1]} does not pin torch: add a line torch==VERSION.")
    if sys.platform.startswith("linux") and not any(glob.glob(pattern) for pattern in ACCELERATORS):
        if pip(f"torch=={version[1]}+cpu", quiet=True).returncode == 0:
            return 0
        if packages := nvidia_packages():
            print(
                f"No accelerator on this machine, and pip's indexes do not offer torch {version[1]}+cpu. pip is about\n"
                f"to install the CUDA build with {len(packages)} packages of NVIDIA's libraries, about 3 GB:\n"
                f"{', '.join(packages)}.\nFor the CPU build (about 0.2 GB) interrupt, and run the command again with "
                f"PIP_EXTRA_INDEX_URL={CPU_INDEX}",
                file=sys.stderr,
            )
    if pip("torch").returncode:
        print(
            f"torch {version[1]} could not be installed for Python {sys.version.split()[0]}. Point pip at an index "
            f"that has it (PIP_EXTRA_INDEX_URL={CPU_INDEX}), or run `make test-light`, which needs no torch.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
