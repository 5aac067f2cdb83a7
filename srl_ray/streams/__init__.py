"""Inference streams and sample streams: how observations, actions and experience travel between workers."""
