#!/usr/bin/env bash
# Starts a Ray head node for jobs of srl_ray; further arguments go to `ray start`.
# A stopped job is killed after RAY_JOB_STOP_WAIT_TIME_S (Ray's own default is 3 s); a minute is enough for a last
# checkpoint of a large policy. Other nodes join with `ray start --address=HOST:PORT`.
set -euo pipefail
export RAY_JOB_STOP_WAIT_TIME_S="${RAY_JOB_STOP_WAIT_TIME_S:-60}"
exec ray start --head --port="${PORT:-6379}" "$@"
