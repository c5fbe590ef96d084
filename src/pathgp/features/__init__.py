"""Random features: finite maps phi with E[phi(x) . phi(z)] = k(x, z)."""

from pathgp.features.base import FeatureMap as FeatureMap
