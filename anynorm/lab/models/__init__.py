"""Models whose norms are specs."""
