"""The parameter service: versions and tags of policies' weights, in memory and on disk."""
