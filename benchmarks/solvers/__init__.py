"""Comparisons of solvers, preconditioners and blocks."""
