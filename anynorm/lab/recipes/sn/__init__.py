"""Tables and figures of the paper sn; see docs/papers/sn.md."""
