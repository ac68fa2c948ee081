"""Revisions of a git checkout: what they are called, and a folder that holds one for a while."""

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
    """The commit that `name` names in the checkout that holds `here`; empty where it names none."""
    done = _git(here, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    sha = done.stdout.strip()
    return sha if done.returncode == 0 and _SHA.match(sha) else ""


def known_revision(here: Path, name: str) -> str:
    """As `revision`; raises `UnknownRevision` if there is none, `BadInput` outside a repository."""
    if sha := revision(here, name):
        return sha
    if _git(here, "rev-parse", "--git-dir").returncode:
        raise BadInput(
            f"{here} is outside of any git checkout (no .git folder), so {name!r} has no meaning there.",
            "Run this in the repository.",
        )
    raise UnknownRevision(
        f"there is no revision {name!r} in {here}.", "A branch, a tag, or a commit's name; is it fetched?"
    )


def between(here: Path, good: str, bad: str) -> list[str]:
    """Commits from after `good` to `bad`, the oldest first, along first parents. Raises `BadInput` where `good` is no
    ancestor of `bad`, or both are one."""
    if good == bad:
        raise BadInput(f"both ends are {good[:10]}: there is no commit between them.", "Name an older commit first.")
    if _git(here, "merge-base", "--is-ancestor", good, bad).returncode:
        raise BadInput(f"{good[:10]} is no ancestor of {bad[:10]}.", "Name an older commit that was good.")
    return _git(here, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}").stdout.split()


def ancestors(here: Path, sha: str) -> list[str]:
    """The commit and those before it along first parents, the newest first; not endlessly many."""
    return _git(here, "rev-list", "--first-parent", f"--max-count={_ANCESTORS}", sha).stdout.split()


def subject(here: Path, sha: str) -> str:
    """The first line of its message."""
    return _git(here, "log", "-1", "--format=%s", sha).stdout.strip()


@contextmanager
def checkout(here: Path, sha: str) -> Iterator[Path]:
    """A folder with the commit `sha`, and in it the one that stands where `here` does; it is gone at the end, also
    where that is a SIGTERM, as a cancelled job of a CI gets."""
    top = _git(here, "rev-parse", "--show-toplevel").stdout.strip()
    place = Path(tempfile.mkdtemp(prefix="trainyard-"))
    tree = place / "tree"
    before = _terminated_as_interrupted()
    try:
        done = _git(here, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach", str(tree), sha)
        if done.returncode:
            raise CommandFailed(f"git made no worktree of {sha[:10]}: {done.stderr.strip()}")
        inside = tree / here.resolve().relative_to(Path(top).resolve())
        if not inside.is_dir():
            raise BadInput(f"{sha[:10]} has no folder {inside.relative_to(tree)}.", "Run this in one that it has.")
        yield inside
    finally:
        _git(here, "worktree", "remove", "--force", str(tree))
        shutil.rmtree(place, ignore_errors=True)
        _git(here, "worktree", "prune")
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _terminated_as_interrupted() -> Any:
    """From now on SIGTERM ends like Ctrl-C, with all that is put away; what was done before. Threads cannot say so."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


def _git(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(["git", *words], cwd=here, env=quiet, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingProgram(f"git cannot be run: {error.strerror}.", "Revisions are git's: install it.") from None
