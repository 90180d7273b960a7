"""Tables and figures of the paper xbn; see docs/papers/xbn.md."""
