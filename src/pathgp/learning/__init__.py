"""Learning hyperparameters: estimators, outer loop, starts, checkpoints, reports (thesis, chapter 5)."""
