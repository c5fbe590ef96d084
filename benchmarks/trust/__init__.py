"""Accuracy of posteriors, and comparison of results before and after a change."""
