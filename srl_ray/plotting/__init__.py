"""Curves of a run, from the files it writes."""
