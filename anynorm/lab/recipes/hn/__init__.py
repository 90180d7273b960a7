"""Tables and figures of the paper hn; see docs/papers/hn.md."""
