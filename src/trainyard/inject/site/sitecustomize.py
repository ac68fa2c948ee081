"""Imported first by every Python that `trainyard run -- COMMAND` or `trainyard numerics record -- COMMAND` starts:
watches the process or records its tensors, after importing the environment's own sitecustomize.

Errors in here must not reach the script: they are printed on stderr, and the script continues unwatched.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
_OURS = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401  the environment's own
except ImportError:
    if _OURS is not None:
        sys.modules["sitecustomize"] = _OURS
if os.environ.get("TRAINYARD_SCRIPT_FOLDER"):
    try:
        from trainyard.run.script.watch_steps import watch
    except ImportError:
        pass  # this Python has no trainyard; the command that started it reports that no step was seen
    else:
        watch()
if os.environ.get("TRAINYARD_NUMERICS_FOLDER"):
    try:
        from trainyard.numerics.record.record_process import record
    except ImportError:
        pass  # as above
    else:
        record()
