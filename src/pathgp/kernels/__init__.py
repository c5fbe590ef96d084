"""Covariance functions and their algebra."""

from pathgp.kernels.algebra import Product as Product
from pathgp.kernels.algebra import Scale as Scale
from pathgp.kernels.algebra import Sum as Sum
from pathgp.kernels.base import Kernel as Kernel
from pathgp.kernels.finite import Finite as Finite
from pathgp.kernels.gneiting import Gneiting as Gneiting
from pathgp.kernels.learned_matern import LearnedMatern as LearnedMatern
from pathgp.kernels.linear import Linear as Linear
from pathgp.kernels.matern import Matern as Matern
from pathgp.kernels.periodic import Periodic as Periodic
from pathgp.kernels.rational_quadratic import RationalQuadratic as RationalQuadratic
from pathgp.kernels.sphere import Sphere as Sphere
from pathgp.kernels.squared_exponential import SquaredExponential as SquaredExponential
from pathgp.kernels.stationary import Stationary as Stationary
from pathgp.kernels.tanimoto import Tanimoto as Tanimoto
from pathgp.kernels.task import Task as Task
