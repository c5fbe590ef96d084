"""Random features: finite maps phi with E[phi(x) . phi(z)] = k(x, z)."""

from pathgp.features.base import FeatureMap as FeatureMap
from pathgp.kernels import Kernel as _Kernel

# Serves kernel.features(num); kernels themselves do not import this package.
_Kernel.feature_map = FeatureMap
