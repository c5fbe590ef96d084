"""What a user gets back: the posterior of a table or of a grid, and what it tells about itself."""

from pathgp.posterior.grid import GridPosterior as GridPosterior
from pathgp.posterior.inducing import InducingPosterior as InducingPosterior
from pathgp.posterior.table import Posterior as Posterior
