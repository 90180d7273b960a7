"""Putting norms into models and taking them out again. Every operation works in place, reports what it did, and can be undone."""
