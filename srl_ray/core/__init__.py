"""Types, errors and small pure helpers that every other package may use. No Ray, no Hydra, no torch."""
