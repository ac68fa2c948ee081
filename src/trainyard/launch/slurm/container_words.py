"""How srun runs the tasks of a step in a container: options for pyxis, or a command prefix for apptainer."""

from __future__ import annotations

import os

from trainyard.launch_request import Container, LaunchRequest

_FILES = (".sif", ".sqsh", ".squashfs", ".simg", ".img")
"""Ends of the names of image files."""


def srun_options(request: LaunchRequest) -> list[str]:
    """The options of srun, unquoted, with which pyxis runs the tasks in the request's container; empty for none."""
    container = request.container
    if container is None or container.runtime != "pyxis":
        return []
    return [f"--container-image={image_word(container)}", f"--container-mounts={','.join(_mounts(request))}"]


def command_prefix(request: LaunchRequest) -> list[str]:
    """The words before a command with which apptainer runs it in the request's container; empty for none."""
    container = request.container
    if container is None or container.runtime != "apptainer":
        return []
    devices = {"nvidia": ["--nv"], "amd": ["--rocm"]}.get(container.vendor, [])
    binds = [word for mount in _mounts(request) for word in ("--bind", mount)]
    return ["apptainer", "exec", *devices, *binds, image_word(container)]


def image_word(container: Container) -> str:
    """The image as its runtime takes it. Paths and references with a scheme, such as `oras://`, stay as they are.

    apptainer takes a name without a scheme for a file: other references get `docker://`. enroot, which runs the
    containers of pyxis, separates the registry by `#`: `nvcr.io/nvidia/pytorch` is `nvcr.io#nvidia/pytorch`.
    """
    image = os.path.expanduser(container.image)
    if "://" in image or image.startswith(("/", ".")) or image.endswith(_FILES):
        return image
    if container.runtime == "apptainer":
        return f"docker://{image.replace('#', '/', 1)}"
    registry, slash, name = image.partition("/")
    has_registry = slash and "#" not in image and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{name}" if has_registry else image


def _mounts(request: LaunchRequest) -> list[str]:
    """The mounts of the container: the user's, and the store and the folders of the nodes under their own names. The
    store has the launch's folder."""
    folders = dict.fromkeys(filter(None, (request.store or request.folder, request.shared_folder, request.node_folder)))
    return [*(request.container.mounts if request.container else ()), *(f"{folder}:{folder}" for folder in folders)]
