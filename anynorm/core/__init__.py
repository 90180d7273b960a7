"""The algebra of normalization as values and small tables: cuts, moments, mixing, affine, update rules, specs."""
