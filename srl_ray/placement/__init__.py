"""Which worker runs where: a pure plan, feasibility in words, and the reserved placement group."""
