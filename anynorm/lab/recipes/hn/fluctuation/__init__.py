"""The recipe `hn_fluctuation`: settings, claims, results and `recipe.py`."""
