"""Times of a page in a browser: Chromium without a window, which draws by software; `npm ci` installs its driver."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from statistics import median

import numpy as np

_SCRIPT = Path(__file__).with_suffix(".js")


def draw_page(path: Path) -> int:
    """Open a page in the browser, and print the times of its first draws and of its frames. Returns 1 if there is no
    browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium on this machine: the page is not drawn")
        return 1
    command = [str(shutil.which("node")), str(_SCRIPT), str(path), browser]
    times = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    draws, frames = times["firstDraws"], times["frames"]
    print(f"first draw {min(draws):.0f} to {max(draws):.0f} ms, median {median(draws):.0f} ms of {len(draws)} loads")
    print(
        f"{len(frames)} frames while zooming and panning: median {median(frames):.1f} ms, "
        f"95th percentile {np.percentile(frames, 95):.1f} ms"
    )
    return 0
