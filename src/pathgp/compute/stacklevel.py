"""Where the package was called from: warnings belong to that line."""

from __future__ import annotations

import sys


def levels_to_the_caller() -> int:
    """How many frames up from the caller of this function the package was entered, as ``stacklevel`` counts them."""
    levels, frame = 1, sys._getframe(1)
    # Cached properties are entered through functools.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("pathgp.", "functools")):
        levels, frame = levels + 1, frame.f_back
    return levels
