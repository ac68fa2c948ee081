"""The library: one function for each command. Options are keywords; results are plain data.

```python
import trainyard

analysis = trainyard.analyse("traces/")
print(analysis.headline)
for finding in analysis.findings:
    print(finding.says, finding.cost_ns)
```
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from trainyard.plugins import AS_WRITTEN

if TYPE_CHECKING:
    from trainyard.report.view.analysis import Analysis

Path = str | os.PathLike[str]


def analyse(
    paths: Path | Sequence[Path],
    *,
    window: Literal["steps", "all"] = "steps",
    mark: str = AS_WRITTEN.mark,
    limit: int = AS_WRITTEN.limit,
    engine: str = "auto",
    strict: bool = False,
) -> Analysis:
    """Analyses profiler files, or folders of them, of one or many ranks of a job.

    `window`: book each step, or the whole window as one step. `mark`: how names of the annotations around steps
    begin. `limit`: bytes that a file may hold when unpacked. `engine`: `serial`, `processes` or `ray`. `strict`:
    refuse damaged files of ranks; otherwise they are left out and named in `warnings`.

    Raises `BadFile` for a file that is not a profile, `BadInput` for profiles that do not belong together.
    """
    from trainyard.plugins import ReadOptions
    from trainyard.report.view.build_analysis import analyse_measured
    from trainyard.trace.measure import measure_files

    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    files, reading = [os.fspath(path) for path in several], ReadOptions(limit, mark)
    return analyse_measured(measure_files(files, window, engine=engine, how=reading, strict=strict))
