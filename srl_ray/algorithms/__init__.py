"""Returns, losses and algorithms. Pure PyTorch, one process; the trainer worker adds everything distributed."""
