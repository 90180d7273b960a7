"""The recipe `sabn_adversarial`: settings, claims, results and `recipe.py`."""
