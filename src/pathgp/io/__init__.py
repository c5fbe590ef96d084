"""Posteriors in one file."""

from pathgp.io.saving import load as load
from pathgp.io.saving import save as save
