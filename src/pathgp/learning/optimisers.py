"""Outer-loop optimisers: each takes one gradient of the loss per step, from the parameters' ``grad``.

`Adam` is the optimiser of the thesis. `LBFGS` is for gradients that are a deterministic function of the hyperparameters
(exact, or with frozen draws). It never asks for the value of the objective, which is unknown for the iterative
estimators: its line search uses directional derivatives only.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pathgp.learning.hyperparameters import Coordinates

# Steps that L-BFGS leaves to Adam, and pairs of changes that it keeps afterwards.
OPENING = 20
MEMORY = 20
# Pairs from which on the quadratic model predicts gains.
LEAST_PAIRS = 5


class Adam:
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    Kingma and Ba (2015), with their b1 = 0.9, b2 = 0.999, eps = 1e-8. torch's own imports a compiler at its first step,
    which takes seconds. It moves the unconstrained parameters behind the softplus, as in the thesis, in the units of
    `Coordinates.units`.

    ``pace`` scales all rates: halved when a step is refused, it grows back to one within a few steps.

    Three resets, and what they mean for L-BFGS; Adam keeps its moments:

        shorten_step        the last step was refused: shorter steps, the curvature is kept
        forget_last_step    the objective is a similar one: the curvature is kept
        forget_curvature    the hyperparameters were changed by others: neither is kept
    """

    # Attributes that a step binds anew: a snapshot of the fit refers to the earlier objects.
    _state: tuple[str, ...] = ("steps", "pace", "moments")

    def __init__(self, coordinates: Coordinates, learning_rate: float) -> None:
        self.coordinates, self.rate = coordinates, learning_rate
        self.steps, self.pace = 0, 1.0
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in coordinates.parameters]

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        self.pace = min(1.0, 1.1 * self.pace)
        first, second = 1.0 - 0.9**self.steps, 1.0 - 0.999**self.steps
        before, self.moments = self.moments, []
        for p, unit, (m, v) in zip(self.coordinates.parameters, self.coordinates.units(), before, strict=True):
            g = torch.zeros_like(p) if p.grad is None else p.grad * unit
            m = m.mul(0.9).add_(g, alpha=0.1)
            v = v.mul(0.999).addcmul_(g, g, value=0.001)
            p.sub_(self.pace * self.rate * unit * (m / first) / (v / second).sqrt().add_(1e-8))
            self.moments.append((m, v))

    def shorten_step(self) -> None:
        """The last step was refused and shortened to a quarter: take smaller steps from here on."""
        self.pace *= 0.5

    def forget_last_step(self) -> None:
        """Moments of similar objectives are averaged."""

    def seed(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Begin with the curvature of a similar objective, which Adam has no use for."""

    def forget_curvature(self) -> None:
        """Forget what was learned about the objective, after a move that is not a step."""

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        parameters = self.coordinates.parameters
        self.moments = [(m.to(p), v.to(p)) for p, (m, v) in zip(parameters, state["moments"], strict=True)]


class LBFGS(Adam):
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

    reach: five times the learning rate in the first step after these.  predicted_gain: by how much a whole step would
    reduce the loss according to the quadratic model, -g^T p / 2; infinite as long as the model has few pairs.
    """

    _state = (*Adam._state, "pairs", "origin", "direction", "reach", "predicted_gain")

    def __init__(self, coordinates: Coordinates, learning_rate: float) -> None:
        super().__init__(coordinates, learning_rate)
        self.reach = 5.0 * learning_rate
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.origin: tuple[Tensor, Tensor] | None = None
        self.direction: Tensor | None = None
        self.predicted_gain = math.inf

    def step(self) -> None:
        if self.steps < OPENING:
            super().step()
            return
        x, g = self.coordinates.position(), self.coordinates.gradient()
        if self.origin is not None and self.direction is not None:
            x0, g0 = self.origin
            # A bound may have stopped a parameter on the way. It does not count for the slopes: at its bound it has no
            # gradient, and without it the slope at the beginning may be positive.
            free = self.direction.masked_fill(g == 0, 0.0)
            before, after = float(g0 @ free), float(g @ free)
            # The pair is what really happened, without the jump to no gradient at a bound.
            moved, change = x - x0, (g - g0).masked_fill(g == 0, 0.0)
            if float(moved @ change) > 1e-10 * float(change @ change):
                self.pairs = [*self.pairs, (moved, change)][-MEMORY:]
            if after > 0.5 * abs(before) and before >= 0:
                # Only what was stopped moves; the next direction leads the others along the bound.
                self.direction = self.direction - free
                self.coordinates.move(x0 + self.direction)
                return
            if after > 0.5 * abs(before):
                self.reach = max(0.25 * self.reach, 1e-4)
                self.direction = self.direction * max(0.1, before / (before - after))
                self.coordinates.move(x0 + self.direction)
                return
            self.reach = min(2.0 * self.reach, 20.0 * self.rate)
        # What a bound holds back has no gradient: the others move as if it were fixed.
        direction = self._quasi_newton(g).masked_fill(g == 0, 0.0)
        if not float(direction @ g) < 0:
            self.pairs, direction = [], -g
        self.predicted_gain = -0.5 * float(direction @ g) if len(self.pairs) >= LEAST_PAIRS else math.inf
        if not bool(direction.any()):
            # Every parameter is at its optimum or at a bound.
            return self.forget_last_step()
        widest = max(float(direction.abs().max()), torch.finfo(direction.dtype).tiny)
        length = self.reach / widest
        self.origin, self.direction = (x, g), direction * (min(1.0, length) if self.pairs else length)
        self.coordinates.move(x + self.direction)

    def shorten_step(self) -> None:
        super().shorten_step()
        self.reach = max(0.25 * self.reach, 1e-4)
        if self.direction is not None:
            self.direction = 0.25 * self.direction

    def forget_last_step(self) -> None:
        """Forget the last position and direction; the curvature is kept."""
        self.origin = self.direction = None
        self.predicted_gain = math.inf

    def seed(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Begin near an optimum, with changes (of the position, of the gradient) of a similar objective."""
        self.pairs, self.steps = pairs[-MEMORY:], OPENING

    def forget_curvature(self) -> None:
        self.forget_last_step()
        self.pairs = []

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
