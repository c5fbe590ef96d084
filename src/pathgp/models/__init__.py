"""Models: the Gaussian process."""

from pathgp.models.gp import GP as GP
