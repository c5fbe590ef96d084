"""The memory promise, measured: the peak of what torch allocates, far below the size of K(Xs, X)."""

from __future__ import annotations

import gc
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import pathgp
from pathgp.kernels import Matern
from pathgp.operators import KernelOperator


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of the tensors made inside the block: ``peak`` is the most that existed at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self._known:
            return

        def freed(_: Any) -> None:
            del self._known[place]
            self.now -= size

        self._known[place] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def data(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 3, generator=generator)
    return X, torch.sin(5 * X.sum(1)), torch.rand(m, 3, generator=generator)


def test_the_meter() -> None:
    with PeakMemory() as meter:
        a = torch.ones(1000, 1000)
        b = a + 1.0
        del a
        view = b[:500]
        del b
        c = view.clone()
        assert meter.now == 4_000_000 + 2_000_000
        del view, c
    assert meter.now == 0
    assert meter.peak == 8_000_000


@pytest.mark.parametrize("standardise", [False, True])
def test_prediction(standardise: bool) -> None:
    """16 paths, mean and variance at 20,000 rows from n = 1,000: K(Xs, X) alone would take 80 MB."""
    X, y, Xs = data(1000, 20_000)
    gp = pathgp.GP(Matern(1.5, 0.3), 0.1, standardise=standardise)
    post = gp.condition(X, y, samples=16, features=32, compute=pathgp.Compute(memory=20_000_000))
    for predict, result in ((post.mean, 4 * 20_000), (post.variance, 4 * 20_000), (post.paths, 64 * 20_000)):
        with PeakMemory() as meter:
            predict(Xs)
        assert meter.peak <= 20_000_000 + 4 * result, predict


def test_paths_at_their_own_points() -> None:
    """16 paths at 40 points each, values and gradients: K would take 1 MB."""
    X, y, Xs = data(400, 640)
    gp = pathgp.GP(Matern(1.5, 0.3), 0.1)
    post = gp.condition(X, y, samples=16, features=32, tol=0.9)
    post.settings = replace(post.settings, compute=pathgp.Compute(memory=400_000))
    own = Xs.unflatten(0, (16, 40)).requires_grad_()
    with PeakMemory() as meter:
        post.paths_at(own.detach())
    assert meter.peak <= 400_000
    with PeakMemory() as meter:
        post.paths_at(own).sum().backward()
    assert meter.peak <= 400_000 + 20 * own.numel() * 4


@pytest.mark.parametrize(("n", "method"), [(1000, "neighbours"), (700, "solve")])
def test_gradients_of_predictions(n: int, method: str) -> None:
    """The budget holds a factor of 700 rows, but not of 1,000."""
    X, y, Xs = data(n, 2500)
    post = pathgp.GP(Matern(1.5, 0.3), 0.1).condition(
        X, y, samples=8, features=32, compute=pathgp.Compute(memory=10_000_000)
    )
    assert post.variance_method == method
    Xs.requires_grad_()
    with PeakMemory() as meter:
        post.mean(Xs).sum().backward()
        post.variance(Xs).sum().backward()
    assert meter.peak <= 20_000_000  # K(Xs, X) and what autograd would keep beside it: 28 MB and more


def test_exact_variances() -> None:
    """The Cholesky factor of H would take 16 n^2 = 16 MB, K(X, Xs) in float64 40 MB; the budget is 8 MB."""
    X, y, Xs = data(1000, 5000)
    post = pathgp.GP(Matern(1.5, 0.3), 0.3).condition(
        X, y, samples=0, solver="cg", compute=pathgp.Compute(memory=8_000_000)
    )
    with PeakMemory() as meter:
        post.variance(Xs[:200])
    # The budget is one for K or its tiles; the solver's iterates come on top.
    assert meter.peak <= 12_000_000
    with PeakMemory() as meter:
        post.covariance(Xs[:300])
    assert meter.peak <= 12_000_000 + 4 * 8 * 300**2


def test_products() -> None:
    """A streamed product, of which K would take 64 MB, and its rows and columns."""
    X, _, _ = data(4000, 1)
    V = torch.ones(4000, 4)
    index = torch.arange(0, 4000, 4)
    with PeakMemory() as meter:
        H = KernelOperator(Matern(1.5, 0.3), X, 0.1, pathgp.Compute(backend="streamed", memory=4_000_000))
        H @ V
        H.rows(index, V)
        H.columns(index, V[index])
        H.bilinear(V, V)
    assert meter.peak <= 4_000_000


@pytest.mark.parametrize("solver", ["ap", "cg"])
def test_conditioning(solver: str) -> None:
    """K would take 36 MB; the solver's iterates are a few times n (s + 1)."""
    X, y, _ = data(3000, 1)
    gp = pathgp.GP(Matern(1.5, 0.3), 0.3)
    with PeakMemory() as meter:
        gp.condition(X, y, samples=7, features=32, solver=solver, tol=0.1, compute=pathgp.Compute(memory=12_000_000))
    assert meter.peak <= 12_000_000 + 20 * 4 * 3000 * 8


@pytest.mark.parametrize("solver", ["ap", "cg", "sdd", "sgd", "cholesky", "auto"])
def test_the_kernel_matrix_is_released_without_the_garbage_collector(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates of a large posterior would otherwise find the memory full of earlier matrices."""
    operators: list[weakref.ref[KernelOperator]] = []
    create = KernelOperator.__init__

    def recorded(self: KernelOperator, *given: Any, **options: Any) -> None:
        create(self, *given, **options)
        operators.append(weakref.ref(self))

    monkeypatch.setattr(KernelOperator, "__init__", recorded)
    X = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
            options: dict[str, Any] = {"samples": 3, "solver": solver, "max_epochs": 20}
            post = pathgp.GP(Matern(1.5, 0.3), 0.1).condition(X[:250], X[:250, 0], **options)
            post = post.update(X[250:], X[250:, 0])
        assert len(operators) >= 2
        assert not any(operator() for operator in operators)
    finally:
        gc.enable()
