"""The recipe `bgn_few_shot`: settings, results and `recipe.py`."""
