#!/bin/bash
# 2 jobs on this machine, one after another, also across queues: measurements must not disturb one another.
set -u
jobs=(
  /runs/20261121-092041-bd57/a/job.sh
  '/runs/20261121-092041-bd57/b c/job.sh'
)
exec 9>>/runs/.lock
for i in "${!jobs[@]}"; do
  folder=$(dirname "${jobs[i]}")
  flock 9
  if [ ! -e "$folder/cancelled" ]; then
    # Its own session: cancelling reaches everything it started, and 9>&- lets no straggler keep the lock.
    REPRO_LOCAL_ID=$$_$i setsid --wait bash "${jobs[i]}" >"$folder/batch.txt" 2>&1 </dev/null 9>&-
  fi
  flock -u 9
done
