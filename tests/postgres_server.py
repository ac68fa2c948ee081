"""A temporary PostgreSQL server for tests, from Debian's package, on a Unix socket in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`; None if no server is installed, or this is root and there is no user
    `postgres` to run it as."""
    initdb = shutil.which("initdb") or next(map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)
    if initdb is None or (os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()}):
        return None
    return Path(initdb).resolve().parent


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The URL of a new database; `folder` must be short, as a socket's path has to be."""
    there = programs()
    assert there is not None
    folder.mkdir(parents=True, exist_ok=True)
    as_whom: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        as_whom = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def do(*command: str) -> None:
        done = subprocess.run([*as_whom, *command], capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    data = str(folder / "data")
    do(str(there / "initdb"), "-D", data, "-U", "test", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
    log, options = str(folder / "log"), f"-k {folder} -c listen_addresses='' -c fsync=off"
    do(str(there / "pg_ctl"), "-D", data, "-l", log, "-o", options, "-w", "start")
    try:
        yield f"postgresql://test@/postgres?host={folder}"
    finally:
        do(str(there / "pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
