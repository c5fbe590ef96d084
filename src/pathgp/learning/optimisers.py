"""Outer-loop optimisers: each asks for one gradient per step.

Adam is torch's, as in the thesis. `LBFGS` is for gradients that are a deterministic function of the hyperparameters
(exact, or with frozen draws). It never asks for the value of the objective, which is unknown for the iterative
estimators: its line search looks at directional derivatives alone.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from pathgp.learning.hyperparameters import Coordinates


class Optimiser(Protocol):
    """What the loop asks of an optimiser; gradients of the loss lie in the parameters' ``grad``."""

    def step(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LBFGS:
    """Limited-memory BFGS with a line search on directional derivatives.

    Positive hyperparameters are moved by factors (see `Coordinates`). A step along the direction p is accepted unless
    the slope g^T p at its end is positive and above half of the slope at its beginning: the minimum was passed, and the
    secant through both slopes says where it lies. No coordinate moves by more than ``reach``, which grows while steps
    are accepted and shrinks when one was not. Nocedal (1980).

    Args:
        coordinates: the hyperparameters to learn.
        reach: the largest change of a coordinate in the first step.
        memory: number of pairs kept.
    """

    def __init__(self, coordinates: Coordinates, reach: float = 0.5, memory: int = 20) -> None:
        self.coordinates, self.memory = coordinates, memory
        self.reach, self.largest = reach, 4.0 * reach
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.origin: tuple[Tensor, Tensor] | None = None
        self.direction: Tensor | None = None

    def step(self) -> None:
        x, g = self.coordinates.position(), self.coordinates.gradient()
        if self.origin is not None and self.direction is not None:
            x0, g0 = self.origin
            before, after = float(g0 @ self.direction), float(g @ self.direction)
            # A bound may have stopped a parameter on the way: the pair is what really happened.
            moved, change = x - x0, g - g0
            if float(moved @ change) > 1e-10 * float(change @ change):
                self.pairs = [*self.pairs, (moved, change)][-self.memory :]
            if after > 0.5 * abs(before):
                self.reach = max(0.25 * self.reach, 1e-4)
                self.direction = self.direction * max(0.1, before / (before - after))
                self.coordinates.move(x0 + self.direction)
                return
            self.reach = min(2.0 * self.reach, self.largest)
        direction = self._quasi_newton(g)
        if not float(direction @ g) < 0:
            self.pairs, direction = [], -g
        widest = max(float(direction.abs().max()), torch.finfo(direction.dtype).tiny)
        length = self.reach / widest
        self.origin, self.direction = (x, g), direction * (min(1.0, length) if self.pairs else length)
        self.coordinates.move(x + self.direction)

    def restart(self) -> None:
        """The objective is another one from here on: no comparison with the step before; the curvature is kept."""
        self.origin = self.direction = None

    def state_dict(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "origin": self.origin, "direction": self.direction, "reach": self.reach}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pairs, self.origin = list(state["pairs"]), state["origin"]
        self.direction, self.reach = state["direction"], state["reach"]

    def _quasi_newton(self, g: Tensor) -> Tensor:
        """-(approximate Hessian)^-1 g by the two-loop recursion."""
        q, kept = g.clone(), []
        for s, y in reversed(self.pairs):
            rho = 1.0 / float(s @ y)
            a = rho * float(s @ q)
            q -= a * y
            kept.append((s, y, rho, a))
        if self.pairs:
            s, y = self.pairs[-1]
            q *= float(s @ y) / float(y @ y)
        for s, y, rho, a in reversed(kept):
            q += s * (a - rho * float(y @ q))
        return -q


def make(name: str, coordinates: Coordinates, learning_rate: float) -> Optimiser:
    """The optimiser called ``name``; Adam moves the unconstrained parameters behind the softplus, as in the thesis."""
    if name == "adam":
        options = [{"params": [p.raw for p in coordinates.positive], "lr": learning_rate}]
        options += [{"params": [p], "lr": learning_rate * unit} for p, unit in coordinates.free]
        # One parameter at a time: there are few, and they may live on different devices.
        return torch.optim.Adam([o for o in options if o["params"]], lr=learning_rate, foreach=False)
    if name == "lbfgs":
        return LBFGS(coordinates, reach=5.0 * learning_rate)
    raise ValueError(f"optimiser must be 'adam' or 'lbfgs', got {name!r}")
