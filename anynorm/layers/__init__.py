"""Normalization layers: the base class `norm.Norm` and `baselines`; the norms defined by cuts are in `anynorm.norms`."""
