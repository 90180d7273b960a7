"""Few-shot classification by imprinted weights."""
