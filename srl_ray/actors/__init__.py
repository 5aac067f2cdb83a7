"""Actor workers: step rings of environment blocks, keep lanes and chunks. Imports neither torch nor Hydra by itself."""
