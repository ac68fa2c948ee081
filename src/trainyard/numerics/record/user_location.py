"""The line of the user's code that runs."""

from __future__ import annotations

import os
from functools import cache
from types import FrameType

import torch

import trainyard

_STANDARD = os.path.dirname(os.__file__) + os.sep
_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(trainyard.__file__) + os.sep)

_PACKAGES = f"{os.sep}site-packages{os.sep}"


def user_location(frame: FrameType | None) -> str:
    """`file:line` of the innermost frame outside of torch, trainyard and Python's standard library; empty if there is
    none. The file is relative to the folder of installed packages or to the current directory if it is below it."""
    while frame is not None:
        name = _shown_name(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@cache
def _shown_name(path: str) -> str:
    """The file to show; empty for a library's."""
    is_standard = path.startswith(_STANDARD) and _PACKAGES not in path
    if is_standard or path.startswith(("<", *_LIBRARIES)):
        return ""
    if _PACKAGES in path:
        return path.rpartition(_PACKAGES)[2][:1000]
    directory = os.getcwd() + os.sep
    return (path.removeprefix(directory) or path)[:1000]
