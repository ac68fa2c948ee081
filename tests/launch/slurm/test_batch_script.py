"""The text of batch scripts, for what a cluster without containers and fabrics cannot show."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import pytest

from tests.launch.requests import JOB, request
from trainyard.launch.slurm.batch_script import render_batch_script
from trainyard.launch_request import Container
from trainyard.run.launches.launch_job import LaunchOptions, build_request

FOLDER = Path("/shared/store/launches/a1b2c3d4")


def words_of(text: str, program: str) -> list[list[str]]:
    """The words of each command line of `program` in a script."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith(f"{program} ")]


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_container_sees_the_store_of_the_launch(runtime: Literal["pyxis", "apptainer"]) -> None:
    container = Container(image="image", runtime=runtime, mounts=("/data:/data",))
    options = LaunchOptions(nodes=2, container=container, node_folder="/local/x", shared_folder="/scratch/y")
    text = render_batch_script(build_request(JOB, options, "a1b2c3d4", FOLDER))
    mounts = ["/data:/data", *(f"{path}:{path}" for path in ("/shared/store", "/scratch/y", "/local/x"))]
    srun = words_of(text, "srun")[-1]
    if runtime == "pyxis":
        assert f"--container-mounts={','.join(mounts)}" in srun
    else:
        assert [srun[index + 1] for index, word in enumerate(srun) if word == "--bind"] == mounts
    assert ["export", "TRAINYARD_STORE=/shared/store"] in words_of(text, "export")
