#!/bin/bash
# 3 jobs on this machine, one after another, also across queues: measurements must not disturb one another.
set -u
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
  '/runs/20261121-092041-bd57/b c/job.sh' '/runs/20261121-092041-bd57/b c'
  '/runs/20261121-092041-bd57/b c/job.sh' '/runs/20261121-092041-bd57/b c-2'
)
exec 9>>/runs/.lock
for ((i = 0; i < 3; i++)); do
  folder=${jobs[2 * i + 1]}
  mkdir -p -- "$folder"
  own=$$_$i
  flock 9
  if [ ! -e "$folder/cancelled" ]; then
    # Its own session: cancelling reaches everything it started, and 9>&- lets no straggler keep the lock.
    REPRO_LOCAL_ID=$own setsid --wait bash "${jobs[2 * i]}" "$folder" >"$folder/batch.txt" 2>&1 </dev/null 9>&-
    # A script that was killed leaves its workers behind, and they would disturb what runs next.
    leader=$(sed -n 's/^pid=\([1-9][0-9]*\)$/\1/p' "$folder/start" 2>/dev/null | head -n 1)
    if [ "${leader:-1}" -gt 1 ] && kill -TERM -- "-$leader" 2>/dev/null; then
      sleep 1
      kill -KILL -- "-$leader" 2>/dev/null
    fi
  fi
  flock -u 9
done
