"""Policy workers: answer inference requests of many actor workers in batches."""
