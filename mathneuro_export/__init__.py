"""Find the math-specific weights of a causal language model, scale or prune them, and prove what changed.

The verbs of the command line are functions here: `identify`, `scale`, `prune`, `apply`, `plan` (what `--dry-run`
prints), `diff`, `combine`, `export_mask`, `inspect` and `verify`. Each is loaded when it is first used, so importing
the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mathneuro_export.api import apply, identify, plan, prune, scale
    from mathneuro_export.export.combine import combine
    from mathneuro_export.export.diff import diff
    from mathneuro_export.export.inspect import inspect
    from mathneuro_export.export.mask_formats import export_mask
    from mathneuro_export.export.verify import verify

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "apply",
    "combine",
    "diff",
    "export_mask",
    "identify",
    "inspect",
    "plan",
    "prune",
    "scale",
    "verify",
]

_HOMES = {
    **dict.fromkeys(("apply", "identify", "plan", "prune", "scale"), "mathneuro_export.api"),
    "combine": "mathneuro_export.export.combine",
    "diff": "mathneuro_export.export.diff",
    "export_mask": "mathneuro_export.export.mask_formats",
    "inspect": "mathneuro_export.export.inspect",
    "verify": "mathneuro_export.export.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
