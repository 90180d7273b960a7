"""Comparison of all norms with the reference on a device of the user, and timing against torch's layers (`anynorm selftest`)."""
