"""The lab: training of norms against each other, and the experiments of five papers. Needs `pip install anynorm[lab]`."""
