"""Builds the compiled code into the wheel where a C compiler is there; elsewhere the wheel is pure Python."""

import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/trainyard/trace/readers/kineto/native")


class NativeCode(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = spec_from_file_location("native_build", Path(self.root) / NATIVE / "build.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        if why := module.build():
            self.app.display_warning(f"trainyard is built without its compiled scanner: {why}")
            return
        build_data["artifacts"].append(str(NATIVE / "native.so"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
