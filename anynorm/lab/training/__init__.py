"""Training runs: configuration, training loop, checkpoints, store of results, sweeps over many runs."""
