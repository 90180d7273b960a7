"""The recipe `bgn_adaptation`: settings, claims, results and `recipe.py`."""
