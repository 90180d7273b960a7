"""The recipe `sabn_generation`: settings, claims, results, plots and `recipe.py`."""
