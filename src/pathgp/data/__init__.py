"""Observations in the units of a model: rows, and grids with holes."""
