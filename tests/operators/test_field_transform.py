"""Transforms at the frequencies of a band against whole transforms; near tiles that are kept in part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.operators.field import transform
from pathgp.operators.field.near import Blocks, NearPart
from pathgp.operators.field.split import Split
from pathgp.operators.field.transform import BandTransform, invert_even, mirror, transform_even

SHAPES = {
    "d 1": ((24,), (17,), (6,)),
    "d 2": ((20, 18), (13, 11), (5, 4)),
    "d 3": ((12, 16, 10), (8, 9, 7), (3, 4, 2)),
    "d 3, whole": ((6, 8, 10), (6, 8, 10), (3, 4, 5)),
    "d 3, all frequencies": ((6, 8, 10), (3, 4, 5), (3, 4, 5)),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_band(whole: Tensor, shape: tuple[int, ...], last: tuple[int, ...]) -> Tensor:
    """The frequencies of the band, of a whole real transform (s, ...)."""
    whole = whole[..., : last[-1] + 1]
    for dimension, (size, largest) in enumerate(zip(shape[:-1], last[:-1], strict=True)):
        number = torch.arange(size)
        whole = whole.index_select(dimension + 1, number[torch.minimum(number, size - number) <= largest])
    return whole


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("at_once", [1, 2**20])
def test_a_transform_leaves_out_zeros_and_frequencies(case: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform, "_AT_ONCE", {"cpu": at_once})
    shape, box, last = SHAPES[case]
    band, dims = BandTransform(shape, box, last), tuple(range(1, 1 + len(shape)))
    inside = (slice(None), *(slice(size) for size in box))
    G = torch.zeros(2, *shape, dtype=torch.float64)
    G[inside] = normal(2, *box)
    S = band.forward(G[inside])
    whole = torch.fft.rfftn(G, dim=dims)
    assert S.shape[1:] == band.bands
    torch.testing.assert_close(S, in_band(whole, shape, last))
    # The inverse, with zeros for the frequencies that are left out.
    for dimension, (size, largest) in enumerate(zip(shape, last, strict=True)):
        number = torch.arange(whole.shape[dimension + 1])
        outside = (torch.minimum(number, size - number) > largest).nonzero().flatten()
        whole.index_fill_(dimension + 1, outside, 0.0)
    torch.testing.assert_close(band.backward(S), torch.fft.irfftn(whole, s=shape, dim=dims)[inside])


@pytest.mark.parametrize("case", SHAPES)
def test_transforms_of_even_functions(case: str) -> None:
    shape, _, last = SHAPES[case]
    values = normal(*(size // 2 + 1 for size in shape))
    periodic = values
    for dimension, size in enumerate(shape):
        periodic = mirror(periodic, size, dimension)
    whole = torch.fft.fftn(periodic).real[tuple(slice(largest + 1) for largest in last)]
    torch.testing.assert_close(transform_even(values, shape, last), whole)
    every = tuple(size // 2 for size in shape)
    torch.testing.assert_close(invert_even(transform_even(values, shape, every), shape), values)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_as_many_tiles_are_kept_as_fit(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept or not, the product is the same; the kept tiles stay within a quarter of the budget."""
    monkeypatch.setattr("pathgp.operators.field.near._AT_ONCE", {"cpu": 4096})
    X, V = torch.rand(900, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64), normal(900, 3)
    kernel = kernels.Scale(kernels.Matern(0.5, 0.1), 2.0) + kernels.Matern(1.5, 0.2)
    radii = {part: 1.0 for part in kernel.modules() if isinstance(part, kernels.Matern)}
    split, blocks = Split(1e-5, 1e-8, 2, radii), Blocks(X)
    whole = NearPart(kernel, split, blocks, None, torch.float64, 10**9)
    memory = int(4 * share * whole.tiles.numel() * 8)
    part = NearPart(kernel, split, blocks, None, torch.float64, max(memory, 4096))
    assert len(whole.tiles) == len(whole.pairs) > 20
    assert part.tiles.numel() * 8 <= memory / 4
    assert (len(part.tiles) > 0) == (share > 0.0)
    with torch.no_grad():
        differences = (X.unsqueeze(1) - X).unbind(2)
        wanted = split.near(kernel, differences) @ V
    for near in (whole, part):
        result = torch.zeros_like(V)
        near.product(V, result)
        torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-9)
