"""Recipes of detection: settings, measurement, claims with their controls, and plots."""
