"""Solvers, preconditioners and blocks compared."""
