"""Code shared by recipes: the class `Recipe`, records, claims, presets, and two common grids of training runs."""
