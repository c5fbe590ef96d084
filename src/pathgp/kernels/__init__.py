"""Covariance functions and their algebra."""

from pathgp.kernels.algebra import Product as Product
from pathgp.kernels.algebra import Scale as Scale
from pathgp.kernels.algebra import Sum as Sum
from pathgp.kernels.base import Kernel as Kernel
from pathgp.kernels.matern import Matern as Matern
from pathgp.kernels.squared_exponential import SquaredExponential as SquaredExponential
