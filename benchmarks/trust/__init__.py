"""Accuracy: are posteriors right, and are results the same as before?"""
