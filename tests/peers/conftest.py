"""The doctests of pytest must not import the module that runs torch's own cases: it changes global flags of torch."""

collect_ignore = ["modules.py"]
