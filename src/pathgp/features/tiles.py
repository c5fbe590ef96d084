"""Row by row evaluation in tiles that fit the cache or the memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Entries of a temporary. On a CPU it has to stay in the cache, which decides the speed; on a GPU it has to be
# large enough to fill the machine.
_ENTRIES = {"cpu": 2**18, "cuda": 2**25}


def tile_entries(device: torch.device) -> int:
    """How many numbers a temporary should hold."""
    return _ENTRIES.get(device.type, _ENTRIES["cpu"])


def tiled(function: Callable[..., Tensor], rows: list[Tensor], width: int, recompute: bool = True) -> Tensor:
    """``function`` of some tensors of n rows, with values (s, n), in tiles of ``width`` numbers per row.

    Where gradients are on, a tile is computed again on the way back instead of being stored, unless the
    function itself stores nothing large (``recompute=False``).
    """
    count = max(1, tile_entries(rows[0].device) // width)
    tiles = zip(*(tensor.split(count) for tensor in rows), strict=True)
    if not (recompute and torch.is_grad_enabled()):
        return torch.cat([function(*tile) for tile in tiles], 1)
    return torch.cat([checkpoint(function, *tile, use_reentrant=False, preserve_rng_state=False) for tile in tiles], 1)
