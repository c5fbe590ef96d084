"""Exact products for sites x regular times: the kernel depends on differences of the times alone."""

from pathgp.operators.toeplitz.backend import LEAST_ROWS as LEAST_ROWS
from pathgp.operators.toeplitz.backend import Layouts as Layouts
from pathgp.operators.toeplitz.backend import Toeplitz as Toeplitz
from pathgp.operators.toeplitz.backend import predict_toeplitz as predict_toeplitz
