"""The guides, and the tool that fills in what their commands print."""
