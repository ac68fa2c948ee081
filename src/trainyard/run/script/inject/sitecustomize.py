"""Found first by every Python that `trainyard run -- COMMAND` starts: watches the process, then makes way.

Whatever goes wrong here must not reach the script: it is said on stderr, and the script goes on unwatched.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _HERE]
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
        pass  # this Python has no trainyard: the command that started it will say that no step was seen
    else:
        watch()
