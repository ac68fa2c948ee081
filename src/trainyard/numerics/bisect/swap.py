"""Which parts of a training are computed in another way than the script does: the request of a trial of a bisection."""

from __future__ import annotations

from typing import Literal

import msgspec

SwapKind = Literal["eager", "float64", "outputs"]
OUTSIDE = ""
"""The path of code outside of modules: losses, optimizers, compiled functions."""


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """Swaps the computation of all modules but some.

    `kind`: `eager`: modules are not compiled; `float64`: each operation is computed in float64, and its result rounded
    to the format that it has in the script; `outputs`: the outputs of all modules, their gradients, and the gradients
    and weights of parameters are replaced by those of another run, after they were recorded. `modules`: paths of
    modules that stay as they are, with their submodules; `operations`: operations that stay as they are, as (path of
    the module, name such as `aten.mm`). `values`: folder with the values of the other run, for `outputs`.
    """

    kind: SwapKind
    modules: tuple[str, ...] = ()
    operations: tuple[tuple[str, str], ...] = ()
    values: str = ""

    def keeps(self, module: str) -> bool:
        """Whether a module stays as it is, with its submodules."""
        return any(module == kept or (kept and module.startswith(f"{kept}.")) for kept in self.modules)

    def keeps_operation(self, module: str, operation: str) -> bool:
        """Whether an operation of a module stays as it is."""
        return (module, operation) in self.operations or self.keeps(module)
