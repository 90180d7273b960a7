"""What recipes share: the `Recipe` itself, records, claims, presets, and two common grids of training runs."""
