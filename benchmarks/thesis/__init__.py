"""The tables and figures of the thesis."""
