"""The course of an optimisation: the best value against evaluations and seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pathgp.plots import COLOURS, DATA, new_figure, tidy


@dataclass(frozen=True)
class Round:
    """One call of ``tell``.

    evaluations: number of finite values so far.  best: the best of them.  batch_best: the best value of this call. Both
    are NaN if there is none.
    failed: values of this call that were not finite.  seconds: since the start, evaluations of the function included.
    """

    evaluations: int
    best: float
    batch_best: float
    failed: int
    seconds: float


@dataclass
class History:
    """All rounds of an optimisation; prints as a table, and `plot` draws it."""

    rounds: list[Round] = field(default_factory=list)

    def plot(self, figure: Any = None, optimum: float | None = None) -> Any:
        """Draw the best value against evaluations and against seconds on a matplotlib figure, and return the figure.

        optimum: the value to reach, if it is known; the regret |optimum - best| is then drawn on a logarithmic axis.
        """
        if not self.rounds:
            raise ValueError("there are no evaluations yet: call tell first")
        figure = new_figure((8.0, 2.8)) if figure is None else figure
        for axes, name in zip(figure.subplots(1, 2, sharey=True), ("evaluations", "seconds"), strict=True):
            self.draw(axes, name, optimum)
            axes.set_xlabel(name, fontsize=8)
        return figure

    def draw(self, axes: Any, against: str = "evaluations", optimum: float | None = None, label: str = "best") -> None:
        """Draw one curve into axes of the caller, against "evaluations" or "seconds"."""
        places = [getattr(each, against) for each in self.rounds]
        best, batch = ([getattr(each, name) for each in self.rounds] for name in ("best", "batch_best"))
        if optimum is not None:
            best, batch = ([abs(optimum - value) for value in values] for values in (best, batch))
            axes.set_yscale("log")
        axes.plot(places, batch, "o", color=DATA, ms=3.0, mew=0, label="best of each batch")
        axes.step(places, best, where="post", color=COLOURS[0], lw=1.6, label=label)
        axes.set_title("regret" if optimum is not None else "best value", fontsize=9, loc="left")
        tidy(axes)

    def __len__(self) -> int:
        return len(self.rounds)

    def __repr__(self) -> str:
        lines = [f"{'evaluations':>11}  {'best':>12}  {'of the batch':>12}  {'failed':>6}  {'seconds':>8}"]
        for each in self.rounds:
            numbers = f"{each.evaluations:11,}  {each.best:12.6g}  {each.batch_best:12.6g}"
            lines.append(f"{numbers}  {each.failed:6}  {each.seconds:8.1f}")
        return "\n".join(lines)
