"""The recipe `sabn_search`: settings, claims, results and `recipe.py`."""
