"""Packages that only some functions need, and that an extra of pathgp installs."""

from __future__ import annotations

import importlib
from typing import Any


def import_optional(package: str, needed_by: str, extra: str) -> Any:
    """The module of an optional package; ImportError that names the extra if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{needed_by} needs {package}: pip install 'pathgp[{extra}]'") from error
