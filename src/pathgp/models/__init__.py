"""Models: the Gaussian process, on tables and on grids with holes."""

from pathgp.models.gp import GP as GP
from pathgp.models.inducing import InducingGP as InducingGP
from pathgp.models.latent_kronecker import LatentKroneckerGP as LatentKroneckerGP
