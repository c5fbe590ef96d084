"""Fits in processes that can be killed.

A request names the settings, the checkpoint and the file for the result. The process prints ``pid 123`` first. It asks
for permission before every step but the first by the line ``step``, and goes on when it can read a byte from the pipe
whose name is in the request; ``free`` asks for none.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor

import pathgp
from pathgp.kernels import Matern, Scale
from plain_fits import plain_fit

STEPS = 20

SETTINGS: dict[str, dict[str, Any]] = {
    "adam, ap": {"solver": "ap", "optimiser": "adam"},
    "adam, cg": {"solver": "cg", "optimiser": "adam"},
    "lbfgs, ap": {"solver": "ap", "optimiser": "lbfgs"},
    "lbfgs, cg": {"solver": "cg", "optimiser": "lbfgs"},
    "adam, cg, cold, standard": {"solver": "cg", "estimator": "standard", "warm_start": False},
    "lbfgs, exact": {"solver": "cg", "estimator": "exact", "optimiser": "lbfgs"},
}


def problem() -> tuple[pathgp.GP, Tensor, Tensor]:
    """A model and data, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(50, 2, generator=generator, dtype=torch.float64)
    y = 3.0 + torch.sin(5.0 * X[:, 0]) + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)
    return pathgp.GP(Scale(Matern(1.5, torch.ones(2))), 0.5, mean=pathgp.means.Constant(2.0)), X, y


def fit(gp: pathgp.GP, X: Tensor, y: Tensor, name: str, **options: Any) -> pathgp.FitReport:
    """One of the fits above."""
    settings = {"steps": STEPS, "samples": 4, "features": 32, "tol": 1e-3, "min_gain": 0.0, **SETTINGS[name]}
    return plain_fit(gp, X, y, **(settings | {"generator": torch.Generator().manual_seed(1)} | options))


def result(gp: pathgp.GP) -> dict[str, Any]:
    """What two runs must agree in, bit for bit."""
    content: dict[str, Any] = {"hyperparameters": gp.state_dict()}
    if gp._posterior is not None:
        Xs = torch.linspace(0.0, 1.0, 10, dtype=torch.float64).unsqueeze(1).expand(10, 2)
        content |= {"weights": gp.posterior.weights, "mean": gp.posterior.mean(Xs), "paths": gp.posterior.paths(Xs)}
    return content


def unbroken(name: str, **options: Any) -> tuple[dict[str, Any], pathgp.FitReport]:
    """One of the fits in this process."""
    gp, X, y = problem()
    report = fit(gp, X, y, name, **options)
    return result(gp), report


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Bit for bit."""
    if a.keys() != b.keys():
        return False
    return all(same(a[k], b[k]) if isinstance(a[k], dict) else torch.equal(a[k], b[k]) for k in a if k != "interrupted")


def child(request: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    permissions = None if request["free"] else os.open(request["pipe"], os.O_RDONLY)

    def wait(step: object) -> None:
        print("step", flush=True)
        if permissions is not None:
            os.read(permissions, 1)

    print(f"pid {os.getpid()}", flush=True)
    gp, X, y = problem()
    interrupted = False
    try:
        checkpoint = pathgp.Checkpoint(request["checkpoint"], steps=1)
        fit(gp, X, y, request["settings"], checkpoint=checkpoint, callback=wait)
    except KeyboardInterrupt:
        interrupted = True
    torch.save({"interrupted": interrupted, **result(gp)}, request["result"])
