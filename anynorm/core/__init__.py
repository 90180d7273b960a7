"""The algebra: read cut, moments, population, mix, affine, parts, then norm."""
