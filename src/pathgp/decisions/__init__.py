"""Decisions from posterior paths: where to evaluate an expensive function next, and which rows of a pool to measure."""

from pathgp.decisions.checkpoint import Evaluations as Evaluations
from pathgp.decisions.checkpoint import read_evaluations as read_evaluations
from pathgp.decisions.history import History as History
from pathgp.decisions.sampler import Best as Best
from pathgp.decisions.sampler import ThompsonSampler as ThompsonSampler
from pathgp.decisions.screening import Screening as Screening
from pathgp.decisions.screening import screen as screen
from pathgp.decisions.screening import select_batch as select_batch
from pathgp.decisions.thompson import maximise_paths as maximise_paths
