"""Trainer workers: take sample batches, update, publish versions, checkpoint."""
