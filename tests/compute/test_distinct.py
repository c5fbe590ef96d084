"""Distinct rows, and rows that combine few sites with few values of one column."""

from __future__ import annotations

import torch

from pathgp.compute.distinct import find_combination, label_distinct_rows


def test_rows_are_labelled_by_their_values_also_if_their_sums_agree() -> None:
    points = torch.tensor([[0.5, 1.0], [2.0, 3.0], [0.5, 1.0], [2.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    # Rows whose weighted sums agree, as far as numbers are rounded.
    root = [2.0**0.5, 3.0**0.5]
    points = torch.cat([points, torch.tensor([[1e17, 0.0], [1e17, 1.0]]), torch.tensor([[root[1], -root[0]]])])
    label, first = label_distinct_rows(points)
    assert torch.equal(points, points[first[label]])
    assert len(first) == len({tuple(row) for row in points.tolist()})
    assert torch.equal(first, torch.stack([torch.nonzero(label == k)[0, 0] for k in range(len(first))]))


def test_sites_and_values_make_up_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    places, times = torch.rand(20, 2, generator=generator), torch.rand(12, generator=generator)
    X = torch.cat([places.repeat(12, 1), times.repeat_interleave(20).unsqueeze(1)], 1)
    X = X[torch.randperm(len(X), generator=generator)[15:]]
    pairs = find_combination(X)
    assert pairs is not None
    assert pairs.column == 2
    again = X[pairs.sites[pairs.cell // 12]]
    again[:, 2] = pairs.values[pairs.cell % 12]
    assert torch.equal(again, X)


def test_rows_without_few_sites_are_no_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, 3, generator=generator)
    assert find_combination(X) is None
    # A column with two values, and 200 sites.
    X[:, 1] = X[:, 1].round()
    assert find_combination(X) is None
