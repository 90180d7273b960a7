"""Replacement, folding, freezing and recalibration of the norms of a model, in place; the report of each function can undo it."""
