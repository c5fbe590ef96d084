"""Outer-loop optimisers: each takes one gradient of the loss per step, from the parameters' ``grad``.

`Adam` is the optimiser of the thesis. `LBFGS` is for gradients that are a deterministic function of the hyperparameters
(exact, or with frozen draws). It never asks for the value of the objective, which is unknown for the iterative
estimators: its line search uses directional derivatives only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathgp.learning.hyperparameters import Coordinates

# Steps that L-BFGS leaves to Adam.
OPENING = 20


class Adam:
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    Kingma and Ba (2015), with their b1 = 0.9, b2 = 0.999, eps = 1e-8. torch's own imports a compiler at its first step,
    which takes seconds.

    ``pace`` scales all rates: halved when a step is refused, it grows back to one within a few steps.

    Args:
        parameters: tensors and the learning rate of each.
    """

    def __init__(self, parameters: list[tuple[Tensor, float]]) -> None:
        self.parameters = parameters
        self.steps = 0
        self.pace = 1.0
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p, _ in parameters]

    def step(self) -> None:
        self.steps += 1
        self.pace = min(1.0, 1.1 * self.pace)
        first, second = 1.0 - 0.9**self.steps, 1.0 - 0.999**self.steps
        # New tensors: a snapshot of the fit refers to the earlier moments.
        before, self.moments = self.moments, []
        with torch.no_grad():
            for (p, rate), (m, v) in zip(self.parameters, before, strict=True):
                g = torch.zeros_like(p) if p.grad is None else p.grad
                m = m.mul(0.9).add_(g, alpha=0.1)
                v = v.mul(0.999).addcmul_(g, g, value=0.001)
                p.addcdiv_(m / first, (v / second).sqrt().add_(1e-8), value=-self.pace * rate)
                self.moments.append((m, v))

    def retreat(self) -> None:
        """The last step was refused and shortened to a quarter: take smaller steps from here on."""
        self.pace *= 0.5

    def restart(self) -> None:
        """Moments of similar objectives are averaged."""

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "moments": self.moments, "pace": self.pace}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.pace = state["steps"], state["pace"]
        self.moments = [(m.to(p), v.to(p)) for (p, _), (m, v) in zip(self.parameters, state["moments"], strict=True)]


class LBFGS:
    """Limited-memory BFGS with a line search on directional derivatives.

    Positive hyperparameters are moved by factors (see `Coordinates`). A step along the direction p is accepted unless
    the slope g^T p at its end is positive and above half of the slope at its beginning: the minimum was passed, and the
    secant through both slopes says where it lies. No coordinate moves by more than ``reach``, which grows while steps
    are accepted and shrinks when one was not. Nocedal (1980).

    The first twenty steps are left to Adam, which moves all hyperparameters at the same speed. With short length scales
    in many dimensions K is almost diagonal, and signal and noise are interchangeable: steps that follow the
    steepest slope send the noise to zero before the length scales have grown, and it does not come back (elevators from
    1.0: a log likelihood of -0.77 a row instead of -0.54). On rough data ten are too few: it ends where noise explains
    what short length scales would (-0.18 a row instead of 0.03).

    Args:
        coordinates: the hyperparameters to learn.
        opening: the optimiser of the first steps.
        reach: the largest change of a coordinate in the first step after these.
        memory: number of pairs kept.
    """

    def __init__(self, coordinates: Coordinates, opening: Adam, reach: float, memory: int = 20) -> None:
        self.coordinates, self.opening, self.memory = coordinates, opening, memory
        self.steps = 0
        self.reach, self.largest = reach, 4.0 * reach
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.origin: tuple[Tensor, Tensor] | None = None
        self.direction: Tensor | None = None

    def step(self) -> None:
        self.steps += 1
        if self.steps <= OPENING:
            self.opening.step()
            return
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
        # What a bound holds back has no gradient: the others move as if it were fixed.
        direction = self._quasi_newton(g).masked_fill(g == 0, 0.0)
        if not float(direction @ g) < 0:
            self.pairs, direction = [], -g
        widest = max(float(direction.abs().max()), torch.finfo(direction.dtype).tiny)
        length = self.reach / widest
        self.origin, self.direction = (x, g), direction * (min(1.0, length) if self.pairs else length)
        self.coordinates.move(x + self.direction)

    def retreat(self) -> None:
        self.opening.retreat()
        self.reach = max(0.25 * self.reach, 1e-4)
        if self.direction is not None:
            self.direction = 0.25 * self.direction

    def restart(self) -> None:
        """Forget the last position and direction; the curvature is kept."""
        self.origin = self.direction = None

    def state_dict(self) -> dict[str, Any]:
        names = ("steps", "pairs", "origin", "direction", "reach")
        return {"opening": self.opening.state_dict(), **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.opening.load_state_dict(state["opening"])
        self.steps, self.pairs, self.origin = state["steps"], list(state["pairs"]), state["origin"]
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


def make(name: str, coordinates: Coordinates, learning_rate: float) -> Adam | LBFGS:
    """The optimiser called ``name``; Adam moves the unconstrained parameters behind the softplus, as in the thesis."""
    rates = [(p.raw, learning_rate) for p in coordinates.positive]
    adam = Adam([*rates, *((p, learning_rate * unit) for p, unit in coordinates.free)])
    return adam if name == "adam" else LBFGS(coordinates, adam, reach=5.0 * learning_rate)
