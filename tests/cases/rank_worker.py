"""Scenarios on several ranks, each of which is a process. Rank r leaves its result in FOLDER/r.pt.

A scenario is a name, and numbers where it asks for some.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import pathgp
from pathgp import kernels, operators, solvers
from pathgp.learning import last_solve, pace
from plain_fits import plain_fit

N = 128
# Small enough for some hundred tiles.
MEMORY = 300_000
SECONDS, PATIENCE = 20.0, 3.0
STEPS = 6
SOLVERS = {"cg": solvers.CG(), "ap": solvers.AP(block_size=30), "sdd": solvers.SDD(batch_size=80)}
Group = operators.Group | None


class Counted(kernels.Scale):
    """A kernel that counts the entries it evaluates, all copies together."""

    entries = 0

    def forward(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        Counted.entries += len(X) * len(X if Z is None else Z)
        return super().forward(X, Z)

    def contract(self, W: Tensor, X: Tensor, Z: Tensor | None = None) -> Tensor:
        Counted.entries += W.numel()
        return super().contract(W, X, Z)


def kernel() -> kernels.Kernel:
    return Counted(kernels.Matern(1.5, torch.tensor([0.5, 0.8])), 0.9)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    return X, torch.sin(5.0 * X[:, 0]) + 0.1 * torch.randn(N, generator=generator, dtype=torch.float64)


def operator(group: Group, backend: str, memory: int = 8 * N**2) -> operators.Operator:
    if group is None:
        return operators.KernelOperator(kernel(), data()[0], 0.4, pathgp.Compute(backend=backend, memory=memory))
    return operators.KernelOperator(
        kernel(), data()[0], 0.4, pathgp.Compute(backend=backend, memory=memory, group=group)
    )


def solutions(group: Group, names: Sequence[str] = tuple(SOLVERS)) -> dict[str, Any]:
    """What the solvers make of the same systems."""
    B = torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found: dict[str, Any] = {}
    for backend, memory in (("dense", 8 * N**2), ("streamed", MEMORY)):
        H = operator(group, backend, memory)
        for name in names:
            options: dict[str, Any] = {"max_epochs": 30, "generator": torch.Generator().manual_seed(2)}
            found[f"{backend}, {name}"] = SOLVERS[name].solve(H, B, tol=1e-6, **options).x
    return found


def prediction(group: Group) -> dict[str, Any]:
    """A posterior, all that can be asked of it, and the gradient of its paths."""
    X, y = data()
    gp = pathgp.GP(kernel(), 0.3)
    options: dict[str, Any] = {"solver": "cg", "samples": 5, "features": 64, "tol": 1e-8}
    options["compute"] = pathgp.Compute("streamed", group=group)
    post = gp.condition(X, y, generator=torch.Generator().manual_seed(3), **options)
    Xs = torch.linspace(0.1, 0.9, 22, dtype=torch.float64).reshape(11, 2).requires_grad_()
    own = Xs.detach()[:10].reshape(5, 2, 2).requires_grad_()
    (post.paths(Xs).square().sum() + post.mean(Xs).sum() + post.variance(Xs, method="samples").sum()).backward()
    later = post.update(Xs.detach()[:3], torch.zeros(3), generator=torch.Generator().manual_seed(4))
    found = {
        "gradient": Xs.grad,
        "mean": post.mean(Xs).detach(),
        "one row": post.mean(Xs[:1]).detach(),
        "no row": post.mean(Xs[:0]).detach(),
        "paths": post.paths(Xs).detach(),
        "paths at own points": post.paths_at(own).detach(),
        "their gradient": torch.autograd.grad(post.paths_at(own).square().sum(), own)[0],
        "neighbours": post.variance(Xs, method="neighbours").detach(),
        "solve": post.variance(Xs, method="solve").detach(),
        "updated": later.mean(Xs).detach(),
    }
    if group is not None:
        found["without a generator"] = gp.condition(X, y, **options).paths(Xs).detach()
        found["backend"] = post.report.backend
    return found


def fit(group: Group, **options: Any) -> dict[str, Any]:
    X, y = data()
    gp = pathgp.GP(kernel(), 0.5)
    settings: dict[str, Any] = {"steps": STEPS, "samples": 4, "features": 32, "solver": "ap", "tol": 1e-3}
    settings |= {"min_gain": 0.0, "generator": torch.Generator().manual_seed(5)}
    settings["compute"] = pathgp.Compute(group=group)
    plain_fit(gp, X, y, **(settings | options))
    return {**gp.hyperparameters(), "mean": gp.posterior.mean(X[:8])}


def limited(group: Group) -> dict[str, Any]:
    """A fit with a time limit that every rank measures by a clock of another speed: the first one decides for all."""
    assert isinstance(group, operators.Ranks)
    clock, speed = time.perf_counter, 1.0 + 9.0 * group.rank
    time.perf_counter = lambda: speed * clock()
    pace.GUARD_ROWS = last_solve.GUARD_ROWS = 64
    try:
        X, y = data()
        gp = pathgp.GP(kernel(), 0.5)
        options: dict[str, Any] = {"samples": 4, "features": 32, "solver": "ap", "estimator": "pathwise"}
        options |= {"compute": pathgp.Compute(group=group), "generator": torch.Generator().manual_seed(5)}
        report = gp.fit(X, y, time_limit=1.0, steps=4, min_gain=0.0, **options)
        return {**gp.hyperparameters(), "weights": gp.posterior.weights, "steps": len(report.history)}
    finally:
        time.perf_counter = clock


def counts(group: Group) -> dict[str, Any]:
    """Entries of the kernel matrix that this rank evaluates: numbers of rows that four can share, and 16 x 16 tiles."""
    options: dict[str, Any] = {"backend": "streamed", "memory": MEMORY // 6}
    compute = pathgp.Compute(**options, group=group)
    H, V = operator(group, **options), torch.ones(N, 2, dtype=torch.float64)
    post = pathgp.GP(kernel(), 0.3).condition(
        *data(), solver="cg", samples=2, features=8, compute=pathgp.Compute(group=group)
    )
    ap, sdd = solvers.AP(block_size=32), solvers.SDD(batch_size=32)
    cg = solvers.CG(solvers.RandomlyPivotedCholesky(32))
    works: dict[str, Callable[[], Any]] = {
        "product": lambda: H @ V,
        "rows": lambda: [H.rows(part, V) for part in torch.arange(N).split(32)],
        "columns": lambda: [H.columns(part, V[:32]) for part in torch.arange(N).split(32)],
        "gradient": lambda: H.bilinear(V, V),
        "ap": lambda: ap.solve(H, V, tol=1e-2, generator=torch.Generator().manual_seed(2)),
        "cg": lambda: cg.solve(H, V, tol=1e-3, generator=torch.Generator().manual_seed(2)),
        "sdd": lambda: sdd.solve(H, V, tol=0.0, max_epochs=5.0, generator=torch.Generator().manual_seed(2)),
        "fit": lambda: fit(group, solver=ap, steps=1, tol=0.1, compute=compute),
        "prediction": lambda: post.mean(torch.rand(80, 2, dtype=torch.float64)),
        "dense": lambda: operator(group, "dense"),
    }
    found = {}
    for name, work in works.items():
        torch.manual_seed(0)
        Counted.entries = 0
        work()
        found[name] = Counted.entries
    return found


def same(group: Group) -> dict[str, Any]:
    found = {"solutions": solutions(group), "prediction": prediction(group), "fit": fit(group), "counts": counts(group)}
    return found | ({"limited": limited(group)} if isinstance(group, operators.Ranks) else {})


def refused(group: Group) -> dict[str, Any]:
    """Errors on every rank where the ranks were not given the same."""
    assert isinstance(group, operators.Ranks)
    X, y = data()
    gp, last = pathgp.GP(kernel(), 0.3), float(group.rank == group.size - 1)
    other = X.flip(0) if last else X
    post = gp.condition(X, y, samples=0, compute=pathgp.Compute(group=group))
    attempts: dict[str, Callable[[], Any]] = {
        "X": lambda: gp.condition(other, y, samples=0, compute=pathgp.Compute(group=group)),
        "y": lambda: gp.condition(X, y + last, samples=0, compute=pathgp.Compute(group=group)),
        "kernel": lambda: pathgp.GP(kernels.Matern(1.5, 1.0 + last), 0.3).condition(
            X, y, samples=0, compute=pathgp.Compute(group=group)
        ),
        "order": lambda: pathgp.GP(kernels.Matern(1.5 + last), 0.3).condition(
            X, y, samples=0, compute=pathgp.Compute(group=group)
        ),
        "mean": lambda: pathgp.GP(kernel(), 0.3, mean=last).condition(
            X, y, samples=0, compute=pathgp.Compute(group=group)
        ),
        "backend": lambda: gp.condition(
            X, y, compute=pathgp.Compute(backend="streamed" if last else "dense", group=group)
        ),
        "memory": lambda: gp.condition(X, y, compute=pathgp.Compute(memory=1e6 if last else None, group=group)),
        "samples": lambda: gp.condition(X, y, samples=3 + int(last), compute=pathgp.Compute(group=group)),
        "steps": lambda: fit(group, steps=STEPS + int(last)),
        "file": lambda: fit(group, checkpoint="nowhere.pt" if last else None),
        "operator": lambda: operator(group, "streamed" if last else "dense"),
        "budget": lambda: operator(group, "streamed", MEMORY + int(last)),
        "Xs": lambda: post.mean(other),
        "V": lambda: operator(group, "dense") @ (X + last),
        "checkpoint": lambda: fit(group, checkpoint=__file__),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            found[name] = str(error)
    return found


def lost(by: signal.Signals, group: Group, folder: Path, victim: int, steps: int) -> dict[str, Any]:
    """A rank ends or hangs without a word after so many steps, when the others have gone on to the next meeting."""
    assert isinstance(group, operators.Ranks)

    def after(step: pathgp.learning.report.Step) -> None:
        if step.step + 1 == steps and group.rank == victim:
            time.sleep(0.2)
            os.kill(os.getpid(), by)

    began = time.perf_counter()
    try:
        fit(group, checkpoint=pathgp.Checkpoint(folder / "fit.pt", steps=100), callback=after)
    except operators.RankLost as error:
        return {"error": str(error), "seconds": time.perf_counter() - began}
    return {}


def resumed(group: Group, folder: Path) -> dict[str, Any]:
    return fit(group, checkpoint=folder / "fit.pt")


def saved(group: Group, folder: Path) -> dict[str, Any]:
    """Every rank saves, under a name of its own."""
    assert isinstance(group, operators.Ranks)
    X, y = data()
    options: dict[str, Any] = {"samples": 4, "features": 32, "generator": torch.Generator().manual_seed(3)}
    post = pathgp.GP(kernels.Matern(1.5, 0.5), 0.3).condition(X, y, compute=pathgp.Compute(group=group), **options)
    post.save(folder / f"by rank {group.rank}")
    return {"mean": post.mean(X[:9]), "paths": post.paths(X[:9]), "covariance": post.covariance(X[:9])}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "same": lambda group, folder: same(group),
    "refused": lambda group, folder: refused(group),
    "solved": lambda group, folder: solutions(group, ["cg"]),
    "killed": functools.partial(lost, signal.SIGKILL),
    "stopped": functools.partial(lost, signal.SIGSTOP),
    "resumed": resumed,
    "saved": saved,
}


def child(scenario: str, rank: int, size: int, folder: Path) -> None:
    """One rank."""
    name, *numbers = scenario.split()
    timeout = dt.timedelta(seconds=PATIENCE if name == "stopped" else SECONDS)
    meeting = f"file://{folder}/meeting of {size}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=timeout)
    torch.save(SCENARIOS[name](operators.Ranks(), folder, *map(int, numbers)), folder / f"{rank}.pt")
