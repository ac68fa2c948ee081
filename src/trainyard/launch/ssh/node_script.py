"""The shell script that runs on each host of a job started with SSH, and the scripts that query and end it.

The launcher sends a script to `ssh HOST sh -s`, after lines that set `node`, the index of the host, and the token of
the job. A node's folder then has `pid` (of the session of all its processes), `log`, and in the end `code`, the exit
code.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trainyard import job_file
from trainyard.launch.launch_spec import TOKEN
from trainyard.launch_request import LaunchRequest

NO_PYTHON, NO_TRAINYARD, NO_FOLDER = 72, 73, 74
"""Exit codes of the script: the interpreter, the package or the folder is missing on the host."""

_RUN = 'trap : TERM; echo $$ > pid; "$@" > log 2>&1 < /dev/null; echo $? > code.part; mv code.part code'
"""Script of the shell that waits for the node's process; it survives a SIGTERM to all processes."""


def render_node_script(request: LaunchRequest, head: str) -> str:
    """The script that starts a node's process in the background. `head`: HOST:PORT at which the nodes meet."""
    return "\n".join(_lines(request, head)) + "\n"


def _lines(request: LaunchRequest, head: str) -> Iterator[str]:
    """Yields the lines of the script."""
    python = shlex.quote(request.command[0])
    yield "# Sent to `ssh HOST sh -s` for each host, after lines that set `node`, its index, and the token of the job."
    yield from _enter_folder(request, "mkdir -p")
    yield f"command -v {python} >/dev/null || exit {NO_PYTHON}"
    yield f"{python} -c 'import trainyard' 2>/dev/null || exit {NO_TRAINYARD}"
    yield "rm -f code pid"
    yield f"printf %s {shlex.quote(job_file.write(request.job))} > job.toml || exit {NO_FOLDER}"
    for name, variable in request.environment.items():
        yield f"# {variable.reason}"
        yield f"export {name}=${{{name}-{shlex.quote(variable.value)}}}"
    yield f"export {TOKEN}"
    command = shlex.join([*request.command, "--job-id", request.id, "--nodes", str(request.nodes), "--head", head])
    shared = f" --shared {shlex.quote(request.shared_folder)}" if request.shared_folder else ""
    yield f"nohup setsid sh -c {shlex.quote(_RUN)} node \\"
    yield f'  {command} --job "$PWD/job.toml" --folder "$PWD" --node "$node"{shared} >/dev/null 2>&1 </dev/null &'
    yield "# It is started when it has written its id, by which it can be ended."
    yield "tries=0; until [ -s pid ] || [ $((tries += 1)) -gt 100 ]; do sleep 0.1; done"


def render_query(request_folder: str, offset: int) -> str:
    """The script that prints a line `STATE CODE` and then the node's log from byte `offset` on, at most 1 MiB.

    STATE: `running`, `over` with the exit code, or `lost` if the process has ended without one. `request_folder`:
    the folder of the nodes as a word of the shell.
    """
    return f"""cd {request_folder}/node"$node" 2>/dev/null || {{ echo lost 0; exit 0; }}
if [ -e code ]; then echo over "$(cat code)"
elif [ -e pid ] && kill -0 "$(cat pid)" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$(cat pid)/status" 2>/dev/null
then echo running 0
else sleep 0.2; if [ -e code ]; then echo over "$(cat code)"; else echo lost 0; fi
fi
tail -c +{offset + 1} log 2>/dev/null | head -c 1048576
"""


def render_signal(request_folder: str, signal: str) -> str:
    """The script that sends a signal, such as TERM, to all processes of a node."""
    return f"""cd {request_folder}/node"$node" 2>/dev/null || exit 0
[ -e pid ] && [ ! -e code ] && kill -s {signal} -- "-$(cat pid)" 2>/dev/null
exit 0
"""


def folder_word(request: LaunchRequest) -> str:
    """The folder of the nodes on each host, as a word of the shell; by default below the user's home."""
    if request.node_folder:
        return shlex.quote(request.node_folder)
    return f'"$HOME"/.cache/trainyard/launches/{shlex.quote(request.id)}'


def _enter_folder(request: LaunchRequest, create: str) -> Iterator[str]:
    """Yields the lines that create the node's folder, readable by the user only, and change to it."""
    yield "umask 077"
    yield f'folder={folder_word(request)}/node"$node"'
    yield f'{create} "$folder" 2>/dev/null && cd "$folder" && [ -w . ] || exit {NO_FOLDER}'
