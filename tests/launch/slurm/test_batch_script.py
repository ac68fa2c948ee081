"""The text of batch scripts, for what a cluster without containers and fabrics cannot show."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from tests.launch.requests import JOB, request
from tests.refused import refused
from trainyard.errors import BadInput
from trainyard.launch.slurm.batch_script import render_batch_script
from trainyard.launch.slurm.container_words import image_word
from trainyard.launch_request import Component, Container, SchedulerOptions
from trainyard.layout import Layout
from trainyard.recipe import Recipe
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


@pytest.mark.parametrize(
    ("image", "apptainer", "pyxis"),
    [
        ("repo/x:1", "docker://repo/x:1", "repo/x:1"),
        (
            "nvcr.io/nvidia/pytorch:25.01-py3",
            "docker://nvcr.io/nvidia/pytorch:25.01-py3",
            "nvcr.io#nvidia/pytorch:25.01-py3",
        ),
        (
            "nvcr.io#nvidia/pytorch:25.01-py3",
            "docker://nvcr.io/nvidia/pytorch:25.01-py3",
            "nvcr.io#nvidia/pytorch:25.01-py3",
        ),
        ("host:5000/x", "docker://host:5000/x", "host:5000#x"),
        ("oras://host/x:1", "oras://host/x:1", "oras://host/x:1"),
        ("/images/x.sif", "/images/x.sif", "/images/x.sif"),
        ("./x", "./x", "./x"),
        ("images/x.sqsh", "images/x.sqsh", "images/x.sqsh"),
    ],
)
def test_image_as_each_runtime_takes_it(image: str, apptainer: str, pyxis: str) -> None:
    assert image_word(Container(image=image, runtime="apptainer")) == apptainer
    assert image_word(Container(image=image, runtime="pyxis")) == pyxis


def test_mounted_folders_are_created_on_all_nodes() -> None:
    kinds = tuple(Component(nodes=1, ranks_per_node=1, constraint=feature) for feature in ("slow", "fast"))
    options = LaunchOptions(components=kinds, container=Container(image="image"), node_folder="/local/x")
    text = render_batch_script(build_request(JOB, options, "a1b2c3d4", FOLDER))
    create, start = words_of(text, "srun")
    assert create[1:3] == ["--ntasks-per-node=1", "--het-group=0-1"]
    assert create[3:] == ["mkdir", "-p", "--", "$node_folder", "$shared_folder", "||", "exit"]
    assert start[1:3] == create[1:3]


def test_components_request_what_their_own_ranks_need() -> None:
    job = replace(JOB, machine="h100", layout=Layout(dp_replicate=16), recipe=Recipe(seq_len=8, tokens_per_step=128))
    kinds = (
        Component(nodes=1, ranks_per_node=8, constraint="h100"),
        Component(nodes=2, ranks_per_node=4, constraint="l40s"),
    )
    options = LaunchOptions(components=kinds, scheduler=SchedulerOptions(exclusive=False))
    text = render_batch_script(build_request(job, options, "a1b2c3d4", FOLDER))
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    second = lines.index("hetjob")
    for component, own_lines in zip(kinds, (lines[:second], lines[second:]), strict=True):
        names = ("--nodes=", "--gpus-per-node=", "--cpus-per-task=", "--constraint=")
        assert [line for line in own_lines if line.startswith(names)] == [
            f"--nodes={component.nodes}",
            f'--constraint="{component.constraint}"',
            f"--gpus-per-node={component.ranks_per_node}",
            f"--cpus-per-task={component.ranks_per_node}",
        ]
    (start,) = words_of(text, "srun")
    assert "--het-group=0-1" in start
    assert not [word for word in start if word.startswith("--cpus-per-task")], "one number for tasks that differ"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "gpu"}, ("partition", "--partition")),
        ({"time": "1"}, ("time", "--time-limit")),
        ({"export": "NONE"}, ("export",)),
        ({"wrap": "id"}, ("wrap",)),
        ({"a b": "1"}, ("'a b'",)),
        ({"comment": 'x" --uid=0'}, ("comment",)),
        ({"comment": "a\nb"}, ("comment",)),
        ({"comment": "https://user:secret@host"}, ("comment", "secret")),
    ],
)
def test_option_that_cannot_be_passed_is_refused(options: dict[str, str], words: tuple[str, ...]) -> None:
    with refused(BadInput, *words):
        render_batch_script(request(FOLDER, ("python3",), scheduler=SchedulerOptions(options=options)))


@pytest.mark.parametrize(
    ("scheduler", "requested", "started"),
    [
        (SchedulerOptions(), ["--mem=0"], []),
        (SchedulerOptions(options={"mem-per-gpu": "32G"}), ['--mem-per-gpu="32G"'], []),
        (SchedulerOptions(exclusive=False), ["--cpus-per-task=1"], ["--cpus-per-task=1"]),
        (SchedulerOptions(exclusive=False, options={"cpus-per-gpu": "8"}), ['--cpus-per-gpu="8"'], []),
        (
            SchedulerOptions(exclusive=False, options={"cpus-per-task": "16"}),
            ['--cpus-per-task="16"'],
            ["--cpus-per-task=16"],
        ),
    ],
)
def test_cores_and_memory(scheduler: SchedulerOptions, requested: list[str], started: list[str]) -> None:
    text = render_batch_script(request(FOLDER, ("python3",), scheduler=scheduler))
    names = ("--mem", "--cpus-per")
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert [line for line in lines if line.startswith(names)] == requested
    assert [word for word in words_of(text, "srun")[-1] if word.startswith(names)] == started


@pytest.mark.parametrize(
    ("limit_s", "notice_s", "is_refused"),
    [
        (300, 600, True),
        (120, 120, True),
        (121, 120, False),
        (60, 0, False),
        (0, 120, False),
        (90_000, 65_535, False),
        (90_000, 65_536, True),
    ],
)
def test_notice_is_shorter_than_the_limit(limit_s: int, notice_s: int, is_refused: bool) -> None:
    scheduler = SchedulerOptions(time_limit_s=limit_s, notice_s=notice_s)
    launch = request(FOLDER, ("python3",), scheduler=scheduler)
    if is_refused:
        with refused(BadInput, str(min(notice_s, 65_535)), "--notice"):
            render_batch_script(launch)
    else:
        assert (f"#SBATCH --signal=TERM@{notice_s}" in render_batch_script(launch)) == (limit_s > 0 and notice_s > 0)
