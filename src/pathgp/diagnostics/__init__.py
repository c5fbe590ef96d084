"""Where and in which directions an approximate posterior differs from the exact one (thesis, section 3.2.4)."""

from pathgp.diagnostics.diagnosis import Diagnosis as Diagnosis
from pathgp.diagnostics.diagnosis import diagnose as diagnose
from pathgp.diagnostics.exact import ExactSolution as ExactSolution
from pathgp.diagnostics.exact import marginal_wasserstein as marginal_wasserstein
from pathgp.diagnostics.regions import REGIONS as REGIONS
from pathgp.diagnostics.regions import Regions as Regions
from pathgp.diagnostics.spectral import SpectralBasis as SpectralBasis
