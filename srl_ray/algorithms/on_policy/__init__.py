"""The update that PPO, APPO and IMPALA share."""
