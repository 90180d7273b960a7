"""The layers: `norm` and `running_stats` hold the one class of all norms, `algebra` and `baselines` the named classes."""
