"""The order in which nested subsets of the rows grow."""

from __future__ import annotations

import torch

import pathgp
from pathgp import Compute, kernels
from pathgp.learning.row_order import draw_order
from pathgp.posterior.conditioning import Settings


def test_subsets_of_stations_are_whole_stations() -> None:
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(90, 2, generator=generator)
    X = torch.cat([places.repeat(50, 1), torch.arange(50.0).repeat_interleave(90).unsqueeze(1)], 1)
    X = X[torch.randperm(len(X), generator=generator)]
    gp = pathgp.GP(kernels.Matern(1.5, torch.ones(3)), noise=0.1)
    data = gp.prepare_data(X, X[:, 0])
    changes = []
    for backend in ("auto", "streamed"):
        settings = Settings.read("auto", 1e-2, None, Compute(backend))
        order = draw_order(gp, data, settings, torch.Generator().manual_seed(1))
        assert torch.equal(order.sort().values, torch.arange(len(X)))
        place = X[order, 0]
        changes.append(int((place[1:] != place[:-1]).sum()))
    assert changes[0] == 89
    assert changes[1] > 4000
