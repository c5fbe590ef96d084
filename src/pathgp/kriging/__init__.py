"""Kriging: maps of a field from values at scattered points, with uncertainty.

from pathgp.kriging import krige

result = krige(points, values, grid=0.25)
result.mean, result.std, result.samples, result.to_dataset(), result.plot()
"""

from pathgp.kriging.cross_validation import CrossValidation as CrossValidation
from pathgp.kriging.empirical_variogram import Variogram as Variogram
from pathgp.kriging.empirical_variogram import variogram as variogram
from pathgp.kriging.interpolation import krige as krige
from pathgp.kriging.result import Kriging as Kriging
