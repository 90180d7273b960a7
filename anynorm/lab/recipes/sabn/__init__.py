"""Tables and figures of the paper sabn; see docs/papers/sabn.md."""
