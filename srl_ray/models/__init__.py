"""Policies and the modules they are made of: encoders, recurrent cores, heads, distributions, normalisers. Torch
only."""
