"""Tables and figures of the papers, one module each, in the folder of the paper: settings, measurements, claims and plots.

`anynorm reproduce --list` lists them; `anynorm reproduce NAME --preset desk` runs one. `support/` has what they share.
"""
