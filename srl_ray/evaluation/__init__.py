"""Play episodes with a policy and count exactly: no Ray, one process, the environments that training used."""
