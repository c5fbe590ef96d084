"""Steps played back do what the same steps do one launch at a time."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
import torch

from pathgp import Compute, kernels, solvers
from pathgp.operators import KernelOperator
from pathgp.solvers.cuda_graph import CapturedStep, _paused_collector, _release_cached_memory, capture_step

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")


def system(device: str, backend: str) -> tuple[KernelOperator, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    X = torch.randn(1003, 5, generator=source).to(device)
    H = KernelOperator(kernels.Matern(1.5, torch.full((5,), 2.0)), X, 0.3, Compute(backend))
    return H, torch.randn(1003, 7, generator=source).to(device)


def solved(H: KernelOperator, b: torch.Tensor, tol: float) -> solvers.Solution:
    solver = solvers.SDD(batch_size=100)
    return solver.solve(H, b, tol=tol, max_epochs=40, generator=torch.Generator().manual_seed(1))


def test_a_cpu_takes_the_steps_themselves() -> None:
    H, _ = system("cpu", "dense")

    def step(index: torch.Tensor) -> None: ...

    assert capture_step(H, step) is step


def test_nothing_is_collected_during_a_capture() -> None:
    """Earlier solves leave graphs in reference cycles; freeing one of them would invalidate the capture."""
    with _paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize(("free", "released"), [(80, False), (20, True)])
def test_cached_memory_is_released_before_a_capture_if_little_is_free(free: int, released: bool) -> None:
    with (
        mock.patch.object(torch.cuda, "mem_get_info", return_value=(free, 100)),
        mock.patch.object(torch.cuda, "empty_cache") as empty_cache,
    ):
        _release_cached_memory(torch.device("cuda"))
    assert empty_cache.called is released


@on_gpu
@pytest.mark.parametrize("solver", [solvers.AP(101), solvers.AP(101, "greedy"), solvers.AP()])
def test_playback_of_projections_equals_launches(solver: solvers.Solver) -> None:
    H, b = system("cuda", "fused")
    played = solver.solve(H, b, tol=0.1, generator=torch.Generator().manual_seed(1))
    H.graph_capturable = False
    launched = solver.solve(H, b, tol=0.1, generator=torch.Generator().manual_seed(1))
    assert played.converged
    assert torch.equal(played.x, launched.x)


@on_gpu
@pytest.mark.parametrize("backend", ["dense", "fused"])
@pytest.mark.parametrize("tol", [0.0, 0.02])
def test_playback_equals_launches(backend: str, tol: float) -> None:
    """Batches of two lengths; tol = 0 averages on the way."""
    H, b = system("cuda", backend)
    with mock.patch.object(CapturedStep, "_capture", autospec=True, side_effect=CapturedStep._capture) as recorded:
        played = solved(H, b, tol)
    assert recorded.call_count == 2
    H.graph_capturable = False
    launched = solved(H, b, tol)
    assert torch.equal(played.x, launched.x)
    assert played.epochs == launched.epochs
    assert played.iterations == launched.iterations


@on_gpu
@pytest.mark.parametrize("backend", ["dense", "fused"])
def test_playback_of_primal_descent_equals_launches(backend: str) -> None:
    """The features and the weight of the average change from step to step."""
    H, b = system("cuda", backend)
    solver = solvers.SGD(batch_size=100)
    played = solver.solve(H, b, tol=0.0, max_epochs=40, generator=torch.Generator().manual_seed(1))
    H.graph_capturable = False
    launched = solver.solve(H, b, tol=0.0, max_epochs=40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(played.x, launched.x)
    assert played.epochs == launched.epochs


@on_gpu
def test_a_smaller_step_reaches_the_recording() -> None:
    """A step far too large is halved until the residuals fall."""
    H, b = system("cuda", "dense")
    solver = solvers.SDD(batch_size=100, step_size=2000.0)
    solution = solver.solve(H, b, tol=0.1, max_epochs=200, generator=torch.Generator().manual_seed(1))
    assert "halvings" in solution.note
    assert solution.converged
