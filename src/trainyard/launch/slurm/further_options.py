"""Options of sbatch that the user adds with `--option NAME=VALUE`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainyard.errors import BadInput
from trainyard.redact import redact

_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}\Z")
_VALUE = re.compile(r"[A-Za-z0-9 ._@+=/&|()*,:\[\]~%-]{0,256}\Z")
_OWN: Mapping[str, str] = {
    "account": "--account",
    "array": "--array",
    "constraint": "--constraint",
    "exclusive": "--exclusive",
    "gpus-per-node": "--accelerators",
    "job-name": "`name` in the job file",
    "no-requeue": "--no-requeue",
    "nodes": "--nodes",
    "oversubscribe": "--no-exclusive",
    "partition": "--partition",
    "qos": "--qos",
    "requeue": "--requeue",
    "signal": "--notice",
    "time": "--time-limit",
}
"""Options that trainyard sets from options of its own -> what to use."""
_FIXED = frozenset(
    {
        "chdir", "cpu-bind", "error", "export", "export-file", "input", "kill-on-bad-exit", "no-kill", "ntasks",
        "ntasks-per-node", "open-mode", "output", "parsable", "test-only", "wait", "wrap",
    }
)  # fmt: skip
"""Options that the batch script, or the submission of it, depends on."""


def sbatch_lines(options: Mapping[str, str]) -> list[str]:
    """The options, name -> value (empty for a flag), as they follow `#SBATCH`.

    Raises `BadInput` for a name that options cannot have or that trainyard sets, and for a value that sbatch would
    not take as it is, or that looks like a secret.
    """
    lines: list[str] = []
    for name, value in options.items():
        if not _NAME.match(name):
            raise BadInput(f"{name!r} cannot be an option of sbatch.", "Write its long name: --option reservation=x.")
        if name in _OWN:
            raise BadInput(f"--option {name} would replace what trainyard sets.", f"Use {_OWN[name]}.")
        if name in _FIXED:
            raise BadInput(f"--option {name} would break the job: its script sets it.", "Leave it out.")
        if not _VALUE.match(value):
            allowed = "letters, digits, spaces and . _ @ + = / & | ( ) * , : [ ] ~ % -"
            raise BadInput(f"{value!r} cannot be a value of --{name}.", f"Use {allowed}.")
        if redact(value) != value:
            raise BadInput(f"the value of --{name} looks like a secret, which would be written into a file.")
        lines.append(f'--{name}="{value}"' if value else f"--{name}")
    return lines
