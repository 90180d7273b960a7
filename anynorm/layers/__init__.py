"""Normalization layers: the base class `norm.Norm`, and the registered norms in `algebra` and `baselines`."""
