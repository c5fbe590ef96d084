"""Groups of neighbouring points."""

from __future__ import annotations

import pytest
import torch

from pathgp.compute.compact_groups import group_nearby_rows


@pytest.mark.parametrize("n", [1, 2, 17, 100, 1000, 1025])
@pytest.mark.parametrize("size", [2, 5, 32])
@pytest.mark.parametrize("kind", ["uniform", "equal", "a line"])
def test_groups_divide_the_points(n: int, size: int, kind: str) -> None:
    X = torch.rand(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = {"equal": X[:1].expand(n, 3), "a line": X[:, :1] * torch.ones(3)}.get(kind, X)
    groups = group_nearby_rows(X, size)
    is_row = groups < n
    counts = is_row.sum(1)
    assert torch.equal(groups[is_row].sort().values, torch.arange(n))
    assert groups.shape[1] == int(counts.max()) <= size
    assert int(counts.min()) >= max(1, int(counts.max()) - 1)
    # Missing rows come last.
    assert torch.equal(is_row.sort(1, descending=True).values, is_row)
    assert int((groups == n).sum()) == int((~is_row).sum())
    if n >= 16 * size:
        assert float(counts.double().mean()) >= 7 / 9 * size - 1


def test_groups_are_compact() -> None:
    """Groups of 16 of 4,096 points of the unit square are about a sixteenth wide in both directions."""
    X = torch.rand(4096, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = X[group_nearby_rows(X, 16)]
    extent = points.amax(1) - points.amin(1)
    assert float(extent.mean()) < 1.0 / 16
    assert float(extent.max()) < 4.0 / 16
