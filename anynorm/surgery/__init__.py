"""Replacement, folding and recalibration of norms in a model: in place, with a report, and with undo."""
