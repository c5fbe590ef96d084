"""The largest values of every path over many rows, of which a block exists at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor


def top_rows(blocks: Iterable[tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest values of every path in descending order, and their rows: (p, count) each.

    blocks: pairs of row numbers (b,) and values (p, b). Fewer columns if there are fewer rows. Memory O(p count) beside
    a block.
    """
    best: tuple[Tensor, Tensor] | None = None
    for rows, values in blocks:
        numbers = rows.to(values.device).expand_as(values)
        if best is not None:
            values, numbers = torch.cat([best[0], values], 1), torch.cat([best[1], numbers], 1)
        largest, places = values.topk(min(count, values.shape[1]), dim=1)
        best = largest, numbers.gather(1, places)
    if best is None:
        raise ValueError("there are no rows to choose from")
    return best


def assign_distinct(options: list[list[int]], taken: Collection[int] = ()) -> list[int | None]:
    """For every list the first row that no earlier list took and that is not in ``taken``; None if all are."""
    used, chosen = set(taken), []
    for rows in options:
        row = next((row for row in rows if row not in used), None)
        chosen.append(row)
        if row is not None:
            used.add(row)
    return chosen
