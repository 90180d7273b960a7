"""Hypotheses of our own about estimation shift, stated before they were measured; see docs/papers/xbn.md."""
