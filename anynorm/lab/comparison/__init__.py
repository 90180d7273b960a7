"""Comparison of norms in one model on one problem."""
