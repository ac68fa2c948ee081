"""The file from which the driver of a job on Ray reads the command of each node."""

from __future__ import annotations

import msgspec

FILE = "nodes.json"


class Nodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`command`: words of the command of each node, without its own options; if the first word is empty, the
    interpreter of Ray's worker runs it. `nodes`: number of nodes; `resources`: of each node's bundle, name -> amount;
    `port`: at which the nodes meet, 0 for a free one of the first node.

    `folder`: of the nodes on each host, empty for one in the user's cache; `shared`: folder that all nodes share, empty
    if there is none; `wait_s`: seconds that the job waits for its resources; `max_restarts`: how often a lost node is
    started again.
    """

    command: tuple[str, ...]
    id: str
    nodes: int
    resources: dict[str, float]
    port: int = 0
    folder: str = ""
    shared: str = ""
    wait_s: int = 3600
    max_restarts: int = 0
