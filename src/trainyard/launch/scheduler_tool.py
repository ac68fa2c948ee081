"""Run the command-line tool of a scheduler, such as `sbatch`, and turn its failures into errors with a next step."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from trainyard.errors import EnvironmentFailed, MissingProgram, SchedulerFailed
from trainyard.redact import redact

_TIMEOUT_S = 120
_LINES = 6
"""Lines of a tool's error output in a message, at most."""


def run_tool(
    words: Sequence[str],
    *,
    install: str,
    next_steps: Mapping[str, str],
    variables: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> str:
    """Run a command line without a shell and return its stdout.

    `install`: next step if the program is not installed. `next_steps`: text of an error message -> advice to the user;
    the first text that stderr contains counts, upper and lower case being equal. `variables`: environment variables in
    addition to those of this process; `stdin`: the tool's input. Raises `MissingProgram` or `SchedulerFailed`.
    """
    try:
        done = subprocess.run(
            list(words),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C", **(variables or {})},
        )
    except FileNotFoundError:
        raise MissingProgram(f"{words[0]} is not installed on this machine.", install) from None
    except PermissionError as error:
        raise EnvironmentFailed(f"{words[0]} cannot be run: {error.strerror}.", install) from error
    except subprocess.TimeoutExpired:
        raise SchedulerFailed(
            f"{words[0]} did not answer within {timeout_s:g} s.", "Check that the scheduler's controller is running."
        ) from None
    if done.returncode == 0:
        return done.stdout
    output = redact("\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-_LINES:]))
    advice = next((step for text, step in next_steps.items() if text.lower() in output.lower()), "")
    raise SchedulerFailed(
        f"{words[0]} failed with exit code {done.returncode}: {output or 'no output'}", advice, output
    )
