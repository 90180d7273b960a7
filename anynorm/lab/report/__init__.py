"""The report page: one HTML file with the results of all runs in a store."""
