"""Measurements of this library: ``python -m benchmarks.ROOM.NAME`` in a checkout; results are in benchmarks/results."""
