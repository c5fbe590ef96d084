"""Plans: counts by their formulas, choices that the library then makes, seconds of the right size."""

from __future__ import annotations

import pytest
import torch

import pathgp
from pathgp import kernels, operators
from pathgp.learning import timing

GB = 1e9


def test_counts_follow_the_formulas() -> None:
    n, d, s = 10_000, 5, 16
    found = pathgp.plan(n, d, s, memory=2 * GB)
    dense, streamed = found.backends["dense"], found.backends["streamed"]
    assert (dense.entries, streamed.entries) == (0.0, n**2 / 2)
    assert dense.kept == dense.moved == 4 * n**2
    assert dense.flops == 2 * n**2 * (s + 1)
    assert streamed.flops > dense.flops
    assert streamed.kept == 0
    assert "fused" not in found.backends
    assert found.solvers["AP"][1] > 0


@pytest.mark.parametrize(("members", "dtype"), [(1, torch.float32), (1, torch.float64), (3, torch.float32)])
def test_the_choice_is_the_one_the_operator_makes(members: int, dtype: torch.dtype) -> None:
    n = 60
    X = torch.rand(n, 2, dtype=dtype)
    group = operators.Devices(["cpu"] * members)
    enough = X.element_size() * n * -(-n // members)
    for memory in (enough - 1, enough):
        H = operators.KernelOperator(kernels.Matern(1.5, 1.0), X, compute=pathgp.Compute(memory=memory, group=group))
        found = pathgp.plan(n, 2, device="cpu", dtype=dtype, memory=memory, members=members)
        assert found.choice == H.backend
        assert found.backends["dense"].fits == (H.backend == "dense")


def test_several_members_share_products() -> None:
    one, four = (pathgp.plan(1_000_000, 11, device="h200", members=members) for members in (1, 4))
    for name, cost in one.backends.items():
        assert four.backends[name].seconds == pytest.approx(cost.seconds / 4)
        assert four.backends[name].entries == cost.entries / 4
    assert one.choice == four.choice == "fused"
    assert one.solvers["AP"][1] / 4 <= four.solvers["AP"][1] < one.solvers["AP"][1] / 3
    assert "Cholesky" not in one.solvers
    assert "fused" not in pathgp.plan(1_000, 11, device="h200", dtype=torch.float64).backends


def test_a_plan_prints_as_a_table() -> None:
    shown = repr(pathgp.plan(200_000, 8, device="H200", members=2))
    assert shown.splitlines()[0] == "200,000 rows, 8 columns, 64 samples; float32, NVIDIA H200, shared out among 2"
    assert "fused" in shown
    assert "<- auto" in shown
    assert "too large" in shown
    assert "last solve                 200,000\nin all about" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_field_is_planned_as_it_is_fitted() -> None:
    """90,000 rows in two columns take a minute or two, not an hour: by Vecchia's likelihood and field products."""
    found = pathgp.plan(90_000, 2, memory=8 * GB)
    assert found.fit.estimator == "vecchia"
    assert found.fit.stages[-1].rows == 50_000
    assert found.fit.seconds < 600
    assert found.solvers["CG, field"][1] < 0.2 * min(found.solvers["AP"][1], found.solvers["CG"][1])
    assert "other kernels take longer" in repr(found)
    assert pathgp.plan(90_000, 4, memory=8 * GB).fit.estimator == "pathwise"
    few = pathgp.plan(500, 2, memory=8 * GB)
    assert few.fit.estimator == "exact"
    assert "other kernels" not in repr(few)
    without_room = pathgp.plan(90_000, 3, memory=0.01 * GB)
    assert "CG, field" not in without_room.solvers
    assert without_room.fit.seconds > found.fit.seconds


def test_measured_rates_are_remembered() -> None:
    found = pathgp.plan(3_000, 4, samples=3, memory=GB, measure=True)
    measured = timing.measured_rates.cache_info().misses
    assert pathgp.plan(3_000, 4, samples=3, memory=GB, measure=True).backends == found.backends
    assert timing.measured_rates.cache_info().misses == measured
    r = timing.measured_rates(torch.device("cpu"), torch.float32)
    assert all(rate > 0 for rate in (r.multiply, r.multiply64, r.factorise, r.read, r.evaluate))


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="n must be at least 1"):
        pathgp.plan(0, 3)
    with pytest.raises(ValueError, match="rates of this machine"):
        pathgp.plan(100, 3, device="h200", measure=True)
    with pytest.raises(ValueError, match="budget in bytes"):
        pathgp.plan(100, 3, memory=-1)
    with pytest.raises(ValueError, match=r"1000 at least, got 8: 2 GB are 2e9"):
        pathgp.plan(100, 3, memory=8)
    with pytest.raises(ValueError, match="a text such as '8GB' or '8 GiB', got '1G'"):
        pathgp.plan(100, 3, memory="1G")
    for device in ("mps", "tpu", 3.5):
        with pytest.raises(ValueError, match=f"device must be 'cpu', a CUDA device or 'h200', got {device!r}"):
            pathgp.plan(100, 3, device=device)  # type: ignore[arg-type]
    for dtype in ("float", torch.float16):
        with pytest.raises(ValueError, match=r"dtype must be torch\.float32 or torch\.float64, got"):
            pathgp.plan(100, 3, dtype=dtype)


def test_dtypes_by_name() -> None:
    for name in ("float32", "float64"):
        assert repr(pathgp.plan(100, 3, dtype=name)) == repr(pathgp.plan(100, 3, dtype=getattr(torch, name)))
        assert pathgp.plan_grid(10, 5, dtype=name) == pathgp.plan_grid(10, 5, dtype=getattr(torch, name))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_planned_by_its_name() -> None:
    with pytest.raises(ValueError, match="device cuda is not available here: 'h200' plans for one from anywhere"):
        pathgp.plan(100, 3, device="cuda")


def test_dual_descent_on_a_gpu_takes_steps() -> None:
    """As measured: 0.21, 0.32 and 0.8 ms for a step of 512 rows."""
    for n, step in ((13_500, 0.21e-3), (50_000, 0.32e-3), (200_000, 0.8e-3)):
        epochs, seconds = pathgp.plan(n, 18, device="h200").solvers["SDD"]
        assert 0.6 < seconds / (epochs * n / 512 * step) < 1.5
