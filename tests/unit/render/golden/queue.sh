#!/bin/bash
# 3 jobs on this machine, one after another, also across queues: measurements must not disturb one another.
set -u
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
  '/runs/20261121-092041-bd57/b c/job.sh' '/runs/20261121-092041-bd57/b c'
  '/runs/20261121-092041-bd57/b c/job.sh' '/runs/20261121-092041-bd57/b c-2'
)
# Whether one of them has not ended: until it has, it keeps its memory, of GPUs as well.
still_there() {
  local pid
  for pid; do ! grep -qs '^State:.[^ZX]' "/proc/$pid/status" || return 0; done
  return 1
}
exec 9>>/runs/.lock
for ((i = 0; i < 3; i++)); do
  folder=${jobs[2 * i + 1]}
  mkdir -p -- "$folder"
  own=$$_$i
  flock 9
  if [ ! -e "$folder/cancelled" ]; then
    # Its own session: cancelling reaches everything it started, and 9>&- lets no straggler keep the lock.
    REPRO_LOCAL_ID=$own setsid --wait bash "${jobs[2 * i]}" "$folder" >"$folder/batch.txt" 2>&1 </dev/null 9>&-
    # A script or a launcher that was killed leaves workers behind: they would keep their GPUs, and disturb what runs next.
    # The ranks of torchrun are not in the script's process group: the environment they were started with names the job.
    leader=$(sed -n 's/^pid=\([1-9][0-9]*\)$/\1/p' "$folder/start" 2>/dev/null | head -n 1)
    left=$(grep -slzxF -- "REPRO_LOCAL_ID=$own" /proc/[0-9]*/environ | cut -d / -f 3)
    [ "${leader:-1}" -le 1 ] || left+=" -$leader"
    # shellcheck disable=SC2086  # numbers
    if [ -n "$left" ] && kill -TERM -- $left 2>/dev/null; then
      sleep 1
      kill -KILL -- $left 2>/dev/null
      for ((waited = 0; waited < 30; waited++)); do still_there $left || break; sleep 1; done
    fi
  fi
  flock -u 9
done
