"""Builds the compiled code into the wheel where a C compiler is there; elsewhere the wheel is pure Python."""

import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path("src/trainyard/formats/native_build.py")


class NativeCode(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = spec_from_file_location("native_build", Path(self.root) / BUILD)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        for folder in module.FOLDERS:
            if why := module.build(folder):
                self.app.display_warning(f"trainyard is built without compiled code: {why}")
                return
            build_data["artifacts"].append(str((folder / module.LIBRARY).relative_to(Path(self.root).resolve())))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
