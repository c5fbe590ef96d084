"""The model owns its parts: what happens to kernel, noise and data outside does not reach it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import pathgp
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Matern, Scale
from posterior_cases import CASES

X, Y, XS = CASES[2].data(40, 6)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kernel() -> Scale:
    return Scale(Matern(1.5, lengthscale=torch.tensor([0.3, 0.6])), 1.2)


def test_the_kernel_is_a_copy() -> None:
    original = kernel()
    gp = pathgp.GP(original, 0.1)
    before = gp.condition(X, Y, samples=0).mean(XS)
    original.signal = 5.0
    assert torch.equal(gp.condition(X, Y, samples=0).mean(XS), before)
    assert gp.kernel.signal.item() == pytest.approx(1.2)


def test_a_posterior_keeps_the_hyperparameters_it_was_made_with() -> None:
    gp = pathgp.GP(kernel(), 0.1)
    post = gp.condition(X, Y, samples=3)
    before = [post.mean(XS), post.paths(XS), post.variance(XS, noise=True), post.variance(XS, method="solve")]
    gp.kernel.signal = 5.0
    gp.kernel.kernel.lengthscale = 0.01
    gp.noise = 2.0
    gp.mean = 100.0
    after = [post.mean(XS), post.paths(XS), post.variance(XS, noise=True), post.variance(XS, method="solve")]
    assert all(map(torch.equal, before, after))
    assert post.update(XS, Y[:6]).model.noise.item() == pytest.approx(0.1)
    assert not any(p.requires_grad for p in post.model.parameters())
    assert all(p.requires_grad for p in gp.parameters())


def test_prior_paths_keep_the_hyperparameters_they_were_made_with() -> None:
    gp = pathgp.GP(kernel(), 0.1, mean=3.0)
    paths = gp.prior(4, 32, seeded())
    before = paths(XS)
    assert before.shape == (4, 6)
    gp.kernel.signal = 5.0
    assert torch.equal(paths(XS), before)
    assert torch.allclose(paths(XS[:2]), before[:, :2], rtol=0, atol=1e-12)
    assert paths(XS.numpy()).shape == (4, 6)


def test_noise() -> None:
    gp = pathgp.GP(kernel(), 0.1)
    assert gp.noise.dtype == torch.float64
    assert gp.noise.item() == pytest.approx(0.1, rel=1e-12)
    gp.noise = 0.7
    assert gp.noise.item() == pytest.approx(0.7, rel=1e-12)
    gp.noise = torch.tensor(1e-6)
    assert gp.noise.item() == pytest.approx(1e-6, rel=1e-6)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="noise must be positive and finite"):
            gp.noise = bad
    assert gp.noise.item() == pytest.approx(1e-6, rel=1e-6)
    gp.noise.backward()
    assert gp._noise.raw.grad is not None


def test_state_dict_round_trip() -> None:
    gp = pathgp.GP(kernel(), 0.3)
    other = pathgp.GP(Scale(Matern(1.5, lengthscale=torch.ones(2)), 1.0), 1.0)
    other.load_state_dict(gp.state_dict())
    assert torch.equal(other.noise, gp.noise)
    posts = [g.condition(X, Y, samples=3, generator=seeded()) for g in (gp, other)]
    assert torch.equal(posts[0].paths(XS), posts[1].paths(XS))
    for duplicate in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        assert torch.equal(duplicate.condition(X, Y, samples=3, generator=seeded()).paths(XS), posts[0].paths(XS))


def test_a_module_as_mean_function_is_frozen_with_the_posterior() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, Z: Tensor) -> Tensor:
            return self.slope * Z[:, 0]

    gp = pathgp.GP(kernel(), 0.1, mean=Slope())
    post = gp.condition(X, Y, samples=0)
    before = post.mean(XS)
    gp.mean.slope.data.fill_(9.0)
    assert torch.equal(post.mean(XS), before)
    assert not before.requires_grad


def test_repr() -> None:
    assert repr(pathgp.GP(Matern(1.5, 0.3), 0.1)) == "GP(Matern(nu=1.5, lengthscale=0.3), noise=0.1, mean=0)"
    text = repr(pathgp.GP(Matern(1.5, 0.3), 0.1, mean=lambda Z: Z[:, 0], standardise=True))
    assert text == "GP(Matern(nu=1.5, lengthscale=0.3), noise=0.1, mean=a function, standardise=True)"


def test_standardisation() -> None:
    generator = seeded()
    A = 1e6 + 3.0 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    A[:, 1] = 0.1
    b = 7.0 + 2.0 * torch.randn(50, generator=generator, dtype=torch.float64)
    scaling = Standardisation.of(A, b)
    inputs, targets = scaling.inputs(A), scaling.targets(b)
    assert torch.allclose(inputs.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(inputs.std(0, correction=0), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(scaling.restore(targets), b)
    assert torch.allclose(scaling.restore_variance(targets.var()), b.var())
    identity = Standardisation.identity(A)
    assert identity.inputs(A) is A
    assert torch.equal(identity.targets(b), b)


def test_a_common_scale_keeps_distances_in_proportion() -> None:
    """standardise="common": one number divides all inputs, so that an isotropic kernel is isotropic in their units."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64) * torch.tensor([100.0, 3.0]) + 5e5
    y = X[:, 1].clone()
    gp = pathgp.GP(Matern(1.5, 0.7), noise=0.1, standardise="common")
    post = gp.condition(X, y, samples=0)
    unit = float(X.var(0, correction=0).mean().sqrt())
    assert post.scaling.scale.tolist() == pytest.approx([unit, unit])
    spread = float(y.std(correction=0))
    plain = pathgp.GP(Scale(Matern(1.5, 0.7 * unit), spread), noise=0.1 * spread, mean=float(y.mean()))
    expected = plain.condition(X, y, samples=0)
    torch.testing.assert_close(post.mean(X + 1.0), expected.mean(X + 1.0), rtol=1e-9, atol=0.0)
    torch.testing.assert_close(post.variance(X + 1.0), expected.variance(X + 1.0), rtol=1e-6, atol=0.0)
    assert "standardise='common'" in repr(gp)
    with pytest.raises(ValueError, match="True, False or 'common' for a GP"):
        pathgp.GP(Matern(1.5), standardise="columns")
    with pytest.raises(ValueError, match="True or False for a InducingGP"):
        pathgp.InducingGP(Matern(1.5), standardise="common")
