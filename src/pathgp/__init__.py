"""Gaussian processes at any scale: exact inference by iterative solvers, posterior samples that are functions."""

from pathgp import diagnostics as diagnostics
from pathgp import features as features
from pathgp import kernels as kernels
from pathgp import means as means
from pathgp import operators as operators
from pathgp import solvers as solvers
from pathgp._version import __version__ as __version__
from pathgp.compute.groups import Devices as Devices
from pathgp.compute.groups import Ranks as Ranks
from pathgp.compute.settings import Compute as Compute
from pathgp.data.grid import break_even as break_even
from pathgp.data.snap import snap as snap
from pathgp.io import load as load
from pathgp.kernels.parameters import LogNormal as LogNormal
from pathgp.learning.checkpoint import Checkpoint as Checkpoint
from pathgp.learning.progress import LongFitWarning as LongFitWarning
from pathgp.learning.report import FitReport as FitReport
from pathgp.models import GP as GP
from pathgp.models import LatentKroneckerGP as LatentKroneckerGP
from pathgp.plans import plan as plan
from pathgp.plans import plan_grid as plan_grid
from pathgp.posterior import GridPosterior as GridPosterior
from pathgp.posterior import Posterior as Posterior
from pathgp.posterior.convergence import ConvergenceWarning as ConvergenceWarning
from pathgp.posterior.report import ConditionReport as ConditionReport
