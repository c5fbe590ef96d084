"""Options of `fit` as in the thesis, instead of the automatic choices."""

from __future__ import annotations

# Adam, pathwise gradients and all rows in every step, from the values of the model.
THESIS_FIT = {"optimiser": "adam", "estimator": "pathwise", "stages": "full", "initialise": "model"}
