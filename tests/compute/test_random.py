"""Partitions: every row once, parts of equal size, neighbours together."""

from __future__ import annotations

import pytest
import torch

from pathgp.compute.random import neighbourhoods, normal, partition


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("n", "parts"), [(1, 1), (7, 7), (100, 1), (100, 2), (101, 3), (1000, 13), (64, 16)])
@pytest.mark.parametrize("near", [False, True])
def test_every_row_is_in_one_of_the_equal_parts(n: int, parts: int, near: bool) -> None:
    X = torch.randn(n, 3, generator=seeded())
    found = neighbourhoods(X, parts, seeded(1)) if near else partition(n, parts, seeded(1), X.device)
    assert len(found) == parts
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert torch.equal(torch.cat(found).sort().values, torch.arange(n))
    assert all(bool((part.diff() > 0).all()) for part in found)


def spread(X: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> float:
    """The variance inside of the parts relative to that of all rows."""
    return float(sum((X[p] - X[p].mean(0)).square().sum() for p in parts) / (X - X.mean(0)).square().sum())


def test_neighbours_are_together() -> None:
    X = torch.rand(4000, 2, generator=seeded())
    assert spread(X, partition(4000, 16, seeded(1), X.device)) > 0.95
    assert spread(X, neighbourhoods(X, 16, seeded(1))) < 0.25


@pytest.mark.parametrize("d", [1, 2])
def test_two_draws_have_other_borders_and_orders(d: int) -> None:
    X = torch.rand(1000, d, generator=seeded())
    generator = seeded(1)
    one, other = neighbourhoods(X, 8, generator), neighbourhoods(X, 8, generator)
    same = {tuple(part.tolist()) for part in one} & {tuple(part.tolist()) for part in other}
    assert not same
    assert all(torch.equal(a, b) for a, b in zip(neighbourhoods(X, 8, seeded(1)), one, strict=True))
    # Not from one end of the space to the other.
    along = torch.tensor([float(X[part, 0].mean()) for part in one])
    assert not bool((along.diff() > 0).all() or (along.diff() < 0).all())


def test_equal_rows_are_shared_out_all_the_same() -> None:
    found = neighbourhoods(torch.zeros(10, 2), 4, seeded())
    assert sorted(map(len, found)) == [2, 2, 3, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="draws on a device need an NVIDIA GPU")
def test_large_draws_are_made_on_the_device() -> None:
    """Repeatable, of the right moments to five standard errors, and never the same twice."""
    device = torch.device("cuda:0")
    first = normal((4000, 4000), seeded(), torch.float64, device)
    assert torch.equal(first, normal((4000, 4000), seeded(), torch.float64, device))
    assert abs(float(first.mean())) < 5 / 4000
    assert abs(float(first.square().mean()) - 1.0) < 5 * 2**0.5 / 4000
    generator = seeded()
    second = [normal((4000, 4000), generator, torch.float64, device) for _ in range(2)][1]
    assert abs(float((first * second).mean())) < 5 / 4000
