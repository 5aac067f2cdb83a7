"""Everything around the workers: Ray connection, worker groups, failure policy, run directory, metrics sinks."""
