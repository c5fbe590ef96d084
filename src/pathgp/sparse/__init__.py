"""Sparse Gaussian processes: n rows of data summarised by m inducing points (thesis, sections 2.2.1 and 3.2.3)."""

from pathgp.sparse.choose import choose_points as choose_points
from pathgp.sparse.family import METHODS as METHODS
from pathgp.sparse.family import Method as Method
