"""Benchmarks: run ``python -m benchmarks.FOLDER.NAME`` in a checkout; results are in benchmarks/results."""
