"""Run the examples of the documents, and write what they print and draw into the pages.

    python docs/examples.py                       the README and all pages
    python docs/examples.py docs/tutorial.md      one page

A comment before a block of commands marks it:

    <!-- run -->             its output is the same every time; a test compares it, or the picture of it
    <!-- run: measured -->   its output holds measured times; a test compares a digest of its commands and scripts

The output replaces the text block that follows. If an image follows instead, it is drawn: an SVG file is the terminal
of the last command, and a PNG file is a screenshot of the page that `<!-- page: FILE, WIDTHxHEIGHT -->` names. All
commands of a page run in one folder with `examples/` and the bundled trace, with a store of its own.
"""

import hashlib
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
INPUTS = ("examples", "src/trainyard/data/demo")
COLUMNS = 80
BLOCK = re.compile(
    r"<!-- run(?:: (?P<kind>measured)(?: (?P<digest>[0-9a-f]{12}))?)? -->\n```console\n(?P<commands>.*?)```\n"
    r"(?:\n```text\n(?P<text>.*?)```\n|\n!\[[^\]]*\]\((?P<picture>[^)]+\.svg)\)\n)?",
    re.DOTALL,
)
SCREENSHOT = re.compile(r"<!-- page: (?P<page>\S+), (?P<size>\d+x\d+) -->\n!\[[^\]]*\]\((?P<picture>[^)]+\.png)\)")
SCRIPT = re.compile(r"examples/[\w/.-]+\.(?:py|toml)")


@dataclass(frozen=True)
class Example:
    """A marked block of a page: its commands, and the text block or the SVG picture after it."""

    start: int
    end: int
    measured: bool
    digest: str
    commands: tuple[str, ...]
    text: str | None
    picture: str | None


def examples(page: str) -> list[Example]:
    """The marked blocks of a page, in order."""
    return [
        Example(
            match.start(),
            match.end(),
            match["kind"] == "measured",
            match["digest"] or "",
            tuple(line[2:] for line in match["commands"].splitlines() if line.startswith("$ ")),
            match["text"],
            match["picture"],
        )
        for match in BLOCK.finditer(page)
    ]


def pages() -> Iterator[Path]:
    """The pages with marked blocks."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    yield from (path for path in paths if examples(path.read_text("utf-8")))


def digest(commands: tuple[str, ...]) -> str:
    """Twelve hexadecimal digits of the commands and of the scripts and jobs that they name."""
    parts = [command.encode() for command in commands]
    names = sorted({name for command in commands for name in SCRIPT.findall(command)})
    parts += [(ROOT / name).read_bytes() for name in names]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def prepare_folder(folder: Path) -> dict[str, str]:
    """Copy the inputs of the examples to `folder`. Return the environment of their commands, with the `trainyard` of
    this checkout first on the path."""
    for name in INPUTS:
        shutil.copytree(ROOT / name, folder / name)
    (folder / "bin").mkdir()
    command = folder / "bin" / "trainyard"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trainyard.cli.main "$@"\n')
    command.chmod(0o755)
    paths = [str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")},
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
        "TRAINYARD_STORE": str(folder / "store"),
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }


def run(command: str, folder: Path, env: dict[str, str]) -> str:
    """What a command prints on stdout through a pipe. Raises `CalledProcessError`."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.replace(str(folder), "~").splitlines())


def run_in_terminal(command: str, folder: Path, env: dict[str, str]) -> str:
    """What a command prints on stdout in a terminal, with colours. Raises `CalledProcessError`."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    chunks: list[bytes] = []
    try:
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    except OSError:  # Linux: the other end of a terminal is closed
        pass
    finally:
        os.close(ours)
    _, errors = process.communicate()
    if process.returncode:
        sys.stderr.write(errors.decode())
        raise subprocess.CalledProcessError(process.returncode, command)
    return b"".join(chunks).decode().replace("\r\n", "\n").replace(str(folder), "~")


def draw_terminal(command: str, output: str, picture: Path) -> None:
    """Write a terminal with `command` and its `output` as an SVG file that fetches nothing."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=COLUMNS, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(output.rstrip("\n")))
    svg = console.export_svg(title="trainyard", unique_id=picture.stem)
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    picture.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), "utf-8")


def take_screenshot(page: Path, size: str, picture: Path) -> None:
    """Write what Chromium shows of an HTML page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no chromium and no google-chrome: make engines installs it.")
    command = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000",
        f"--window-size={size.replace('x', ',')}", f"--screenshot={picture}", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def refresh(path: Path) -> None:
    """Run the examples of a page, and write it again."""
    page = path.read_text("utf-8")
    parts: list[str] = []
    position = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = prepare_folder(folder)
        for example in examples(page):
            parts += [page[position : example.start], _refreshed(example, page, path, folder, env)]
            position = example.end
        path.write_text("".join(parts) + page[position:], "utf-8")
        for match in SCREENSHOT.finditer(page):
            take_screenshot(folder / match["page"], match["size"], path.parent / match["picture"])


def _refreshed(example: Example, page: str, path: Path, folder: Path, env: dict[str, str]) -> str:
    """The text of a block with its commands' present output."""
    print(f"{path.relative_to(ROOT)}: {'; '.join(example.commands)}", flush=True)
    *first, last = example.commands
    for command in first:
        run(command, folder, env)
    if example.picture is None:
        output = run(last, folder, env)
    else:
        output = ""
        draw_terminal(last, run_in_terminal(last, folder, env), path.parent / example.picture)
    block = page[example.start : example.end]
    if example.measured:
        block = re.sub(r"<!-- run.*? -->", f"<!-- run: measured {digest(example.commands)} -->", block, count=1)
    if example.text is not None:
        block = block.replace(f"```text\n{example.text}```", f"```text\n{output}```")
    return block


if __name__ == "__main__":
    for path in map(Path.resolve, map(Path, sys.argv[1:])) if sys.argv[1:] else pages():
        refresh(path)
