"""The memory promise: budgets bind, and an allocation that fails all the same changes no number."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pathgp import Compute, kernels
from pathgp.compute.memory import free_memory, halve_on_failure, spans, tile_edge
from pathgp.operators import KernelOperator, cross_product


class LiveMemory(TorchDispatchMode):
    """The largest number of bytes held at one time by tensors made while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._owners: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            if address in given and self._owners[address] == 0:
                continue  # a view of something that was there before
            if self._owners[address] == 0:
                self.live += size
                self.peak = max(self.peak, self.live)
            self._owners[address] += 1
            weakref.finalize(tensor, self._release, address, size)
        return result

    def _release(self, address: int, size: int) -> None:
        self._owners[address] -= 1
        if self._owners[address] == 0:
            self.live -= size


class Cramped(kernels.Matern):
    """A kernel on a device where matrices above some size do not fit."""

    limit = 300

    def __init__(self) -> None:
        super().__init__(1.5, 0.3)
        self.failures: list[int] = []

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        self._allocate(X.shape[0] * Z.shape[0])
        return super()._matrix(X, Z)

    def _allocate(self, entries: int) -> None:
        if entries > self.limit:
            self.failures.append(entries)
            raise torch.OutOfMemoryError("out of memory")


def inputs(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("backend", ["dense", "streamed"])
def test_out_of_memory_halves_the_tile_and_gives_the_same_numbers(backend: str) -> None:
    X, index = inputs(70), torch.arange(3, 60, 2)
    V, D = torch.sin(5 * X), torch.cos(3 * X[index])
    roomy, cramped = kernels.Matern(1.5, 0.3), Cramped()
    results = []
    for kernel in (roomy, cramped):
        H = KernelOperator(kernel, X, 0.2, Compute(backend))
        value = H.bilinear(V, V)
        (gradient,) = torch.autograd.grad(value, list(kernel.parameters()))
        cross = cross_product(kernel, X[:40], X, V)
        results.append((H @ V, H.rows(index, V), H.columns(index, D), value.detach(), gradient, cross.detach()))
    assert cramped.failures
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_tile_that_worked_is_remembered() -> None:
    X = inputs(70)
    H = KernelOperator(Cramped(), X, 0.2, Compute("streamed"))
    kernel = H._snapshot
    assert isinstance(kernel, Cramped)
    H @ X
    failures = len(kernel.failures)
    assert failures > 0
    H @ X
    assert len(kernel.failures) == failures


def test_halving_ends_at_one_row_and_lets_other_errors_through() -> None:
    edges = []

    def hopeless(edge: int) -> None:
        edges.append(edge)
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        halve_on_failure(hopeless, 20)
    assert edges == [20, 10, 5, 2, 1]

    def broken(edge: int) -> None:
        edges.append(edge)
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        halve_on_failure(broken, 20)
    assert len(edges) == 6


def test_a_dense_matrix_must_fit_the_budget() -> None:
    X = inputs(100, torch.float32)
    with pytest.raises(ValueError, match="use backend='streamed' or raise memory="):
        KernelOperator(kernels.Matern(1.5, 0.3), X, compute=Compute(backend="dense", memory=39_999))
    assert KernelOperator(kernels.Matern(1.5, 0.3), X, compute=Compute(memory=39_999)).backend == "streamed"
    assert KernelOperator(kernels.Matern(1.5, 0.3), X, compute=Compute(memory=40_000)).backend == "dense"


@pytest.mark.parametrize("task", ["product", "rows", "columns", "bilinear", "cross"])
def test_eight_thousand_points_in_four_megabytes(task: str) -> None:
    """K would take 256 MB. The budget covers the tiles and the output."""
    n, memory = 8_000, 4_000_000
    # Partial work for all but the product: the peak does not depend on how many rows are asked for.
    X, index = inputs(n, torch.float32), torch.arange(0, n, 16)
    V = torch.ones(n, 2)
    kernel = kernels.Matern(1.5, 0.3)
    H = KernelOperator(kernel, X, 0.1, Compute(memory=memory))
    few = KernelOperator(kernel, X[:3000], 0.1, Compute(backend="streamed", memory=memory))
    with LiveMemory() as probe:
        if task == "product":
            H @ V
        elif task == "rows":
            H.rows(index, V)
        elif task == "columns":
            H.columns(index, V[index])
        elif task == "bilinear":
            few.bilinear(V[:3000], V[:3000])
        else:
            Z = X[index[::4]].requires_grad_()
            cross_product(kernel, Z, X, V, memory=memory).sum().backward()
    assert 0 < probe.peak <= memory


def test_the_probe_sees_a_matrix_that_is_too_large() -> None:
    X = inputs(2000, torch.float32)
    with LiveMemory() as probe:
        kernels.Matern(1.5, 0.3)(X)
    assert probe.peak >= 2000**2 * 4


def test_tiles_and_spans() -> None:
    cpu = torch.device("cpu")
    assert list(spans(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(spans(0, 3)) == []
    edges: Sequence[int] = [tile_edge(budget, torch.float32, cpu) for budget in (1, 10**5, 10**6, 10**12)]
    assert edges[0] == 1
    assert list(edges) == sorted(edges)
    assert tile_edge(10**6, torch.float64, cpu) < edges[2]
    assert free_memory(cpu) > 0
