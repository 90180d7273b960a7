"""Random passes of all kernels against the float64 definition, kills at random moments, and steady memory (`make soak`)."""
