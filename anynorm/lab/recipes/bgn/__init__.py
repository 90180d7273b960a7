"""Tables and figures of the paper bgn; see docs/papers/bgn.md."""
