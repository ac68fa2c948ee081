"""Git revisions: resolve their names, and check one out into a temporary worktree."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.errors import BadInput, CommandFailed, MissingProgram, UnknownRevision

_ANCESTORS = 1000
_SHA = re.compile(r"[0-9a-f]{40}\Z")


def revision(here: Path, name: str) -> str:
    """Resolve `name` to a commit in the checkout that contains `here`; empty if there is none."""
    result = _git(here, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    sha = result.stdout.strip()
    return sha if result.returncode == 0 and _SHA.match(sha) else ""


def known_revision(here: Path, name: str) -> str:
    """Like `revision`, but raises `UnknownRevision` if there is none, and `BadInput` outside a repository."""
    if sha := revision(here, name):
        return sha
    if _git(here, "rev-parse", "--git-dir").returncode:
        raise BadInput(
            f"{here} is not in a git checkout (no .git folder), so revision {name!r} cannot be resolved.",
            "Run this command inside the repository.",
        )
    raise UnknownRevision(
        f"there is no revision {name!r} in {here}.", "Pass a branch, a tag or a commit; fetch it first if needed."
    )


def between(here: Path, good: str, bad: str) -> list[str]:
    """The commits after `good` up to and including `bad`, oldest first, along first parents.

    Raises `BadInput` if `good` is not an ancestor of `bad`, or both are the same commit."""
    if good == bad:
        raise BadInput(f"GOOD and BAD are the same commit, {good[:10]}.", "Pass an older commit as GOOD.")
    if _git(here, "merge-base", "--is-ancestor", good, bad).returncode:
        raise BadInput(f"{good[:10]} is not an ancestor of {bad[:10]}.", "Pass an older commit as GOOD.")
    return _git(here, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}").stdout.split()


def ancestors(here: Path, sha: str) -> list[str]:
    """The commit and its ancestors along first parents, newest first; at most 1,000."""
    return _git(here, "rev-list", "--first-parent", f"--max-count={_ANCESTORS}", sha).stdout.split()


def subject(here: Path, sha: str) -> str:
    """The first line of the commit's message."""
    return _git(here, "log", "-1", "--format=%s", sha).stdout.strip()


@contextmanager
def checkout(here: Path, sha: str) -> Iterator[Path]:
    """Check out the commit `sha` into a temporary worktree and yield the folder in it that corresponds to `here`.

    The worktree is removed at the end, also on SIGTERM, which a cancelled CI job receives: it raises KeyboardInterrupt
    inside. Raises `CommandFailed` if git fails, `BadInput` if the commit does not have the folder.
    """
    top = _git(here, "rev-parse", "--show-toplevel").stdout.strip()
    folder = Path(tempfile.mkdtemp(prefix="trainyard-"))
    tree = folder / "tree"
    previous_handler = _interrupt_on_sigterm()
    try:
        result = _git(here, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach", str(tree), sha)
        if result.returncode:
            raise CommandFailed(f"git could not create a worktree of {sha[:10]}: {result.stderr.strip()}")
        folder_in_tree = tree / here.resolve().relative_to(Path(top).resolve())
        if not folder_in_tree.is_dir():
            raise BadInput(
                f"commit {sha[:10]} has no folder {folder_in_tree.relative_to(tree)}.",
                "Run this command in a folder that exists in that commit.",
            )
        yield folder_in_tree
    finally:
        _git(here, "worktree", "remove", "--force", str(tree))
        shutil.rmtree(folder, ignore_errors=True)
        _git(here, "worktree", "prune")
        if previous_handler is not None:
            signal.signal(signal.SIGTERM, previous_handler)


def _interrupt_on_sigterm() -> Any:
    """Let SIGTERM raise KeyboardInterrupt, so that everything is cleaned up; return the previous handler. Does nothing
    outside the main thread, which alone can set signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


def _git(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a git command in the folder `here`, without prompts; its exit code is not checked. Raises `MissingProgram`
    without git."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(["git", *words], cwd=here, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingProgram(f"git cannot be run: {error.strerror}.", "Install git to compare revisions.") from None
