"""PPO on asynchronous streams: a configuration of PPO; README.md beside this file says which and why."""
