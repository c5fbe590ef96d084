"""Figures draw: the priors as they are, the others on a handful of made-up rows."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
from benchmarks.common import drawing
from benchmarks.common.uci import Regression
from benchmarks.thesis import figures_costs, figures_learning, figures_priors, figures_sgd, figures_spectral


@pytest.mark.parametrize("name", ["squared_exponential", "matern", "periodic"])
def test_priors_draw(name: str, tmp_path: Path) -> None:
    path = getattr(figures_priors, name)(tmp_path / "deep" / f"{name}.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert 10_000 < path.stat().st_size < 300_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of chapters 3 and 5 with three steps on sixty rows."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(80, 3, generator=generator)
    y = torch.sin(6 * X[:, 0]) + 0.1 * torch.randn(80, generator=generator)

    def made_up(name: str, **options: Any) -> object:
        tables = [table.to(options.get("dtype", X.dtype)) for table in (X[:60], y[:60], X[60:], y[60:])]
        return Regression(name, *tables, noise=0.1, signal=1.0, lengthscale=torch.ones(3))

    for module in (figures_costs, figures_learning, figures_sgd):
        monkeypatch.setattr(module, "uci", made_up)
    # Drawing takes longer than the computations.
    monkeypatch.setattr(drawing, "DPI", 30)
    monkeypatch.setattr(figures_costs, "STEPS", 3)
    monkeypatch.setattr(figures_costs, "BUDGETS", (2, 4))
    monkeypatch.setattr(figures_learning, "SEEDS", 2)
    monkeypatch.setattr(figures_sgd, "BUDGETS", (3, 4))
    monkeypatch.setattr(figures_spectral, "BUDGETS", (3, 4))
    monkeypatch.setattr(figures_spectral, "EPOCHS", 4)
    modules = (figures_costs, figures_learning, figures_sgd, figures_spectral)
    return {module.__name__.split("_")[-1]: module for module in modules}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("costs", "time_shares"),
        ("costs", "budgets"),
        ("learning", "initial_distances"),
        ("learning", "probes"),
        ("learning", "cold_trajectories"),
        ("learning", "warm_trajectories"),
        ("sgd", "gradient_noise"),
        ("sgd", "errors_by_time"),
        ("spectral", "error_and_basis"),
        ("spectral", "regions_of_a_map"),
        ("spectral", "errors_by_direction"),
    ],
)
def test_figures_of_data_draw(module: str, name: str, small: dict[str, ModuleType], tmp_path: Path) -> None:
    path = getattr(small[module], name)(tmp_path / f"{name}.png", 60)
    assert path.read_bytes().startswith(b"\x89PNG")
