"""`python -m srl_ray.benchmark`: what this machine could do, and what a run does with it."""
