"""What a feature map promises beside being unbiased."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from kernel_cases import COUNTS, MIXED, REAL, mixed_inputs
from pathgp import kernels
from pathgp.features import FeatureMap, waves
from pathgp.kernels import Kernel

NAMES = list(MIXED)
SMOOTH = [name for name in NAMES if "tanimoto" not in name]


def inputs(n: int = 7, dtype: torch.dtype = torch.float64) -> Tensor:
    return mixed_inputs(n, dtype)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frozen(name: str) -> Kernel:
    return MIXED[name]().requires_grad_(False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num", [200, 201, 333])
def test_at_most_num_features(name: str, num: int) -> None:
    phi = frozen(name).features(num, seeded())
    assert 0.6 * num < phi.num <= num or name == "periodic"
    assert phi(inputs()).shape == (7, phi.num)
    assert phi.paths is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_is_the_contraction(name: str, dtype: torch.dtype) -> None:
    X = inputs(dtype=dtype)
    phi = frozen(name).features(200, seeded(), paths=5)
    W = torch.randn(5, phi.num, dtype=dtype, generator=seeded())
    features, values = phi(X), phi.weighted(X, W)
    assert features.shape == (5, 7, phi.num)
    assert features.dtype == values.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(values, torch.einsum("snf,sf->sn", features, W), rtol=tolerance, atol=tolerance)
    shared = frozen(name).features(200, seeded())
    torch.testing.assert_close(shared.weighted(X, W), W @ shared(X).T, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_values_do_not_depend_on_tiles_or_splits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = inputs(40)
    phi = frozen(name).features(200, seeded(), paths=5)
    W = torch.randn(5, phi.num, dtype=torch.float64, generator=seeded())
    whole, features = phi.weighted(X, W), phi(X)
    torch.testing.assert_close(phi.weighted(X[13:17], W), whole[:, 13:17], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(phi(X[13:17]), features[:, 13:17], rtol=1e-10, atol=1e-10)
    for entries in (1, 700, 5000):
        monkeypatch.setitem(waves._ENTRIES, "cpu", entries)
        torch.testing.assert_close(phi.weighted(X, W), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_draws(name: str) -> None:
    X = inputs()
    kernel = frozen(name)
    first, second = (kernel.features(200, seeded(), paths=2) for _ in range(2))
    assert first.seed == second.seed
    assert torch.equal(first(X), second(X))
    if name not in ("periodic",):
        assert not torch.equal(first(X), kernel.features(200, seeded(1), paths=2)(X))
        assert not torch.equal(first(X)[0], first(X)[1])
        assert not torch.equal(first(X), kernel.features(200, paths=2)(X))


@pytest.mark.parametrize("name", NAMES)
def test_draws_do_not_depend_on_the_dtype(name: str) -> None:
    """float32 differs by rounding alone, whichever dtype comes first; heavy tails keep their digits."""
    X = inputs(dtype=torch.float32)
    low = frozen(name).features(200, seeded(), paths=2)(X)
    high = frozen(name).features(200, seeded(), paths=2)(X.double())
    torch.testing.assert_close(low.double(), high, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", SMOOTH)
def test_differentiable_in_the_inputs(name: str) -> None:
    phi = frozen(name).features(200, seeded(), paths=2)
    W = torch.randn(2, phi.num, dtype=torch.float64, generator=seeded())
    X = inputs(3)
    if name == "cauchy":
        X[:, :2] *= 1e-3  # its paths oscillate too fast for the differences of gradcheck

    def moved(real: Tensor) -> Tensor:
        return torch.cat([real, X[:, 2:]], 1)

    real = X[:, :2].clone().requires_grad_()
    assert gradcheck(lambda r: phi.weighted(moved(r), W), real, eps=1e-7, atol=1e-4)
    assert gradcheck(lambda r: phi(moved(r)), real, fast_mode=True, eps=1e-7, atol=1e-4)
    if name != "cauchy":
        # Small steps, because frequencies have heavy tails.
        assert gradgradcheck(lambda r: phi.weighted(moved(r), W), real, fast_mode=True, eps=1e-7, atol=1e-4)
    (gradient,) = torch.autograd.grad(phi.weighted(moved(real), W).sum(), real)
    (expected,) = torch.autograd.grad(torch.einsum("snf,sf->", phi(moved(real)), W), real)
    torch.testing.assert_close(gradient, expected)


def test_hashes_are_constant_almost_everywhere() -> None:
    X = inputs().requires_grad_()
    phi = kernels.Tanimoto(active_dims=COUNTS).features(16, paths=2)
    W = torch.randn(2, phi.num, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(phi(X + 1e-12 * (X > 0)), phi(X))
    assert not phi.weighted(X, W).requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_differentiable_in_hyperparameters_and_weights(name: str) -> None:
    kernel = MIXED[name]()
    X = inputs(3)
    phi = kernel.features(110, seeded(), paths=2)
    W = torch.randn(2, phi.num, dtype=torch.float64, generator=seeded())
    parameters = tuple(kernel.parameters())
    if parameters:
        with torch.no_grad():
            X[:, :2] *= 0.01 if name == "cauchy" else 1.0
        assert gradcheck(lambda *_: phi.weighted(X, W), parameters, atol=1e-4)
    zero = torch.zeros_like(W).requires_grad_()
    (gradient,) = torch.autograd.grad(phi.weighted(X, zero).sum(), zero)
    torch.testing.assert_close(gradient, phi(X).detach().sum(1))


@pytest.mark.parametrize("name", ["matern", "rational", "periodic matern", "mixed sum"])
def test_features_move_smoothly_with_the_hyperparameters(name: str) -> None:
    kernel = frozen(name)
    X = inputs()
    phi = kernel.features(200, seeded(), paths=3)
    W = torch.randn(3, phi.num, dtype=torch.float64, generator=seeded())
    before = phi.weighted(X, W)
    steps = []
    for step in (1e-3, 1e-5):
        moved = copy.deepcopy(phi)
        for parameter in moved.kernel.parameters():
            parameter += step
        steps.append((moved.weighted(X, W) - before).norm() / step)
    assert steps[0] > 0.01
    torch.testing.assert_close(steps[0], steps[1], rtol=0.1, atol=0)


def test_the_map_follows_its_kernel_and_a_copy_does_not() -> None:
    X = inputs()
    kernel = kernels.Scale(kernels.Matern(1.5, active_dims=REAL), 1.0).requires_grad_(False)
    phi = kernel.features(64, seeded())
    before = phi(X)
    snapshot = copy.deepcopy(phi)
    kernel.signal = 2.0
    torch.testing.assert_close(phi(X), 2.0 * before)
    assert torch.equal(snapshot(X), before)
    assert phi.kernel is kernel
    assert snapshot.kernel is not kernel


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_state_round_trip(name: str, evaluated: bool) -> None:
    """A map is restored from plain data, also after the hyperparameters have moved."""
    X = inputs()
    kernel = frozen(name)
    phi = kernel.features(200, seeded(), paths=2, dim=6)
    if evaluated:
        phi(X)
    for parameter in kernel.parameters():
        parameter += 0.3
    buffer = io.BytesIO()
    torch.save({"state": phi.state(), "kernel": kernel.state_dict()}, buffer)
    buffer.seek(0)
    stored = torch.load(buffer, weights_only=True)
    other = frozen(name)
    other.load_state_dict(stored["kernel"])
    restored = FeatureMap.from_state(other, stored["state"])
    assert restored.num == phi.num
    assert restored.kernel is other
    assert torch.equal(restored(X), phi(X))


def test_dimension_may_be_unknown() -> None:
    """A scalar length scale says nothing about the columns: the draws wait for the first inputs."""
    X = torch.randn(4, 3, dtype=torch.float64)
    kernel = kernels.Matern(1.5, 0.7)
    phi = kernel.features(32, seeded())
    assert torch.equal(phi(X), kernel.features(32, seeded(), dim=3)(X))
    with pytest.raises(ValueError, match="drawn for 3 columns"):
        phi(X[:, :2])
    for finite in (kernels.Linear(), kernels.Periodic()):
        with pytest.raises(ValueError, match="give dim to features"):
            finite.features(64)
        torch.testing.assert_close(
            finite.features(4000, dim=2)(X[:, :2]) @ finite.features(4000, dim=2)(X[:, :2]).T, finite(X[:, :2])
        )


def test_integer_inputs() -> None:
    X = torch.randint(0, 5, (4, 2))
    assert kernels.Matern().features(8)(X).dtype == torch.float64


def test_a_map_says_when_a_periodic_kernel_has_outgrown_it() -> None:
    kernel = kernels.Periodic(1.0, 1.0)
    phi = kernel.features(512, dim=1)
    X = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    kernel.lengthscale = 0.26
    assert phi.suffices
    torch.testing.assert_close(phi(X) @ phi(X).T, kernel(X), rtol=0, atol=1e-11)
    for lengthscale in (0.01, 1e-6):
        kernel.lengthscale = lengthscale
        assert not phi.suffices
        with pytest.raises(ValueError, match="no longer suffice"):
            phi(X)


def test_a_kernel_without_features_says_so() -> None:
    class Mine(Kernel):
        pass

    class Radial(kernels.Stationary):
        pass

    for kernel in (Mine(), Radial(), kernels.Matern() + kernels.Scale(Mine())):
        with pytest.raises(NotImplementedError, match=r"has no random features.*post\.sample"):
            kernel.features(100)


def test_errors_say_what_to_do() -> None:
    kernel = kernels.Matern(active_dims=[0, 5])
    phi = kernel.features(16, paths=2)
    with pytest.raises(ValueError, match="acts on column 5"):
        phi(torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"weights must have shape \(2, 16\)"):
        phi.weighted(torch.ones(3, 6), torch.ones(3, 16))
    with pytest.raises(ValueError, match="at least 1"):
        kernel.features(0)
    with pytest.raises(ValueError, match="at least 1"):
        kernel.features(2, paths=0)
    with pytest.raises(ValueError, match="Task needs 40 features, but only 30 are left"):
        kernels.Task(40).features(30)
    with pytest.raises(ValueError, match=r"Matern \* Task needs 80 features, but only 79 are left"):
        (kernels.Matern(active_dims=[0]) * kernels.Task(40, active_dims=[1])).features(79)
    with pytest.raises(ValueError, match="lengthscale has 3 entries"):
        kernels.Matern(lengthscale=torch.ones(3)).features(8)(torch.ones(2, 2))
    with pytest.raises(ValueError, match="non-negative"):
        kernels.Tanimoto().features(8)(-torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor"):
        phi([[1.0]])


def test_gradients_store_no_features() -> None:
    """The graph of ``weighted`` holds what is linear in the rows and in the paths, not their product."""
    X = torch.randn(500, 2).requires_grad_()
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    kernel = kernels.Matern(1.5).requires_grad_(False)
    phi = kernel.features(64, paths=20)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        phi.weighted(X, torch.randn(20, 64))
    assert sum(saved) < 500 * 20 * 32 / 2
