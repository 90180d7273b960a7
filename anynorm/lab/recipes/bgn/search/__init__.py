"""The recipe `bgn_search`: settings, claims, results and `recipe.py`."""
