"""The space of NAS-Bench-201 (Dong & Yang 2020): operations, cells and their notation, the supernet and the network of a cell."""
