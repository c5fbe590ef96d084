"""Solvers of H x = B: one interface, one settings record per method."""

from pathgp.operators.grid_blocks import GridBlocks as GridBlocks
from pathgp.operators.grid_inverse import GridInverse as GridInverse
from pathgp.solvers.ap import AP as AP
from pathgp.solvers.auto import Auto as Auto
from pathgp.solvers.auto import as_solver as as_solver
from pathgp.solvers.base import Solver as Solver
from pathgp.solvers.cg import CG as CG
from pathgp.solvers.cholesky import Cholesky as Cholesky
from pathgp.solvers.preconditioners import PivotedCholesky as PivotedCholesky
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky as RandomlyPivotedCholesky
from pathgp.solvers.sdd import SDD as SDD
from pathgp.solvers.sgd import SGD as SGD
from pathgp.solvers.solution import Record as Record
from pathgp.solvers.solution import Solution as Solution
from pathgp.solvers.solution import Status as Status
from pathgp.solvers.vecchia import Vecchia as Vecchia
