"""Other names of the machines in the package: with the vendor, the form factor or the memory of the device."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {
    "a100-80gb": "a100", "h100-80gb": "h100", "h200-141gb": "h200", "h800-80gb": "h800",
    "b200-180gb": "b200", "b200-192gb": "b200", "b300-288gb": "b300",
    "mi250x-128gb": "mi250x", "mi300x-192gb": "mi300x", "mi325x-256gb": "mi325x",
    "mi350x-288gb": "mi350x", "mi355x-288gb": "mi355x",
    "v4": "tpu-v4", "v5e": "tpu-v5e", "v5p": "tpu-v5p", "v6e": "tpu-v6e", "trillium": "tpu-v6e",
    "trainium": "trn1", "trainium1": "trn1", "trainium2": "trn2", "trainium3": "trn3",
    "gb200-nvl72": "gb200", "gb300-nvl72": "gb300",
}  # fmt: skip
"""Other name -> name of the machine's file."""
IGNORED_WORDS = frozenset({
    "nvidia", "amd", "instinct", "google", "aws", "tesla", "gpu", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "oam",
    "hgx", "dgx",
})  # fmt: skip
"""Words of a name that do not change the machine. A PCIe card is another machine."""
