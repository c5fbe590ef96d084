"""Row by row evaluation in tiles that fit the cache or the memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Entries of a temporary. On a CPU it has to stay in the cache, which decides the speed; on a GPU it has to be
# large enough to fill the machine.
_ENTRIES = {"cpu": 2**18, "cuda": 2**25}


def tile_entries(device: torch.device) -> int:
    """How many numbers a temporary should hold."""
    return _ENTRIES.get(device.type, _ENTRIES["cpu"])


def tiled(function: Callable[[Tensor], Tensor], X: Tensor, width: int, parameters: nn.Module) -> Tensor:
    """``function``, (r, d) -> (s, r), at all rows of X, in tiles whose temporaries have ``width`` entries a row.

    Where X or the parameters need gradients, a tile is computed again on the way back instead of being stored.
    """
    rows = max(1, tile_entries(X.device) // width)
    learns = X.requires_grad or any(p.requires_grad for p in parameters.parameters())
    if not (learns and torch.is_grad_enabled()):
        return torch.cat([function(part) for part in X.split(rows)], 1)
    return torch.cat(
        [checkpoint(function, part, use_reentrant=False, preserve_rng_state=False) for part in X.split(rows)],
        1,
    )
