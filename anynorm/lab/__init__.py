"""Experiments: data, models, recipes and their records."""
