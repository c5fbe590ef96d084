"""The time of one fit: its deadline, the predicted costs of what is left, and the progress that it shows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pathgp.learning.policy import GUARD_ROWS
from pathgp.learning.progress import Progress
from pathgp.learning.timing import FitCosts

if TYPE_CHECKING:
    from pathgp.learning.loop import Fit

# Why a fit stopped, or why a posterior is conditioned on a subset of the rows.
TIME_LIMIT = "time limit"
# A prediction is multiplied by the first number when it must fit into the time limit, and by the second one to keep
# time for the last solve: a step more is worth less than rows that are left out.
_SAFETY, _RESERVE = 1.4, 2.0
# The last solve may take this part of the time limit; the steps before it take the rest.
LAST_SHARE = 0.5
# A further stage begins only if there is time for this number of its steps.
_LEAST_STEPS = 3


@dataclass(frozen=True)
class Pace:
    """The clock of a fit.

    costs: None if nothing is predicted.  limit: seconds.  deadline: by ``time.perf_counter``; None without a limit.
    resumed_at: steps taken by an earlier process, perhaps on another machine; their seconds are not used.
    predicted_seconds: of the fit, at its start.
    """

    costs: FitCosts | None = None
    limit: float = 0.0
    deadline: float | None = None
    progress: Progress | None = None
    resumed_at: int = 0
    predicted_seconds: float = math.nan

    def observed_costs(self, running: Fit) -> FitCosts:
        """The costs, corrected by the steps of this process."""
        assert self.costs is not None
        return self.costs.observe(running.history[self.resumed_at :])

    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        assert self.deadline is not None
        return self.deadline - time.perf_counter()

    def has_time_for_step(self, running: Fit) -> bool:
        """Whether the next step and the last solve end before the deadline; a new stage needs time for three steps."""
        costs, number = self.observed_costs(running), running.next_stage
        stage, is_new = running.stages[number], number != running.stage or not running.history
        seconds = costs.step(stage.rows, is_first=is_new, exact=stage.exact)
        if number != running.stage:
            seconds += (min(_LEAST_STEPS, stage.steps) - 1) * costs.step(stage.rows, exact=stage.exact)
        return seconds + self._reserve(running, costs) <= self.seconds_left()

    def seconds_for_step(self, running: Fit) -> float | None:
        """How long the solve of a step may take; None without a time limit."""
        if self.deadline is None:
            return None
        return self.seconds_left() - self._reserve(running, self.observed_costs(running))

    def rows_in_time(self, running: Fit, costs: FitCosts) -> int:
        """The largest number of rows whose solve ends before the deadline."""
        seconds, solved = self.seconds_left(), running.max_solved_rows
        count = costs.rows_within(seconds / _SAFETY, GUARD_ROWS)
        # Rows of an earlier solve have a good start.
        return max(count, solved) if solved and costs.last_solve(solved, is_first=False) <= seconds else count

    def show(self, running: Fit) -> None:
        """Show the latest step and the time left."""
        if self.progress is not None and self.progress.is_shown and self.costs is not None:
            self.progress.show_step(running.history[-1], self.predict_left(running))

    def predict_left(self, running: Fit) -> float:
        """Seconds until the end of the fit, at most until its deadline."""
        number, stages = running.next_stage, running.stages
        taken = len(running.history) - running.stage_began if number == running.stage else 0
        left = 0 if running.stop_reason else sum(stage.steps for stage in stages) - len(running.history)
        rows = running.planned_rows if self.deadline is not None else len(running.data.y)
        seconds = self.observed_costs(running).predict(stages, rows, number, taken, left)
        return seconds if self.deadline is None else min(seconds, self.seconds_left())

    def _reserve(self, running: Fit, costs: FitCosts) -> float:
        """Seconds to keep for the last solve, on the rows for which the stages were made."""
        rows = running.planned_rows
        return min(_RESERVE * costs.last_solve(rows, is_first=running.max_solved_rows < rows), LAST_SHARE * self.limit)


def rows_for_stages(pace: Pace) -> int:
    """The rows for which stages are made: all, or the most whose last solve takes half of the time limit."""
    assert pace.costs is not None
    return pace.costs.rows_within(LAST_SHARE * pace.limit / _SAFETY, GUARD_ROWS)
