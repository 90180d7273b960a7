"""The report page: a store of runs as one HTML file."""
