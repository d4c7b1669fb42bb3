#!/bin/bash
# Run 3 jobs on this machine, one at a time, also across queues, so that no job disturbs a measurement.
set -u
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
  '/runs/20261121-092041-bd57/b c/job.sh' '/runs/20261121-092041-bd57/b c'
  '/runs/20261121-092041-bd57/b c/job.sh' '/runs/20261121-092041-bd57/b c-2'
)
# Queues run in the order of their submission: wait until the queues with lower tickets have ended.
ticket=${REPRO_LOCAL_TICKET:-}
unset REPRO_LOCAL_TICKET
has_earlier_queue() {
  local other host pid
  for other in "${ticket%/*}"/[0-9]*; do
    [[ ${other##*/} < ${ticket##*/} ]] || break
    read -r host pid 2>/dev/null <"$other" || continue
    [ "$host" != "$(uname -n)" ] || ! grep -qsaF queue.sh "/proc/$pid/cmdline" || return 0
  done
  return 1
}
if [ -n "$ticket" ]; then
  trap 'rm -f -- "$ticket"' EXIT
  while (flock -s 8 && has_earlier_queue) 8>>"${ticket%/*}/.lock"; do sleep 0.2; done
fi
# Return 0 if one of these processes still runs: until its end it keeps its memory, also of GPUs.
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
    # A session of its own, so that a cancellation ends all its processes. 9>&-: no process that stays keeps the lock.
    REPRO_LOCAL_ID=$own setsid --wait bash "${jobs[2 * i]}" "$folder" >"$folder/batch.txt" 2>&1 </dev/null 9>&-
    # A killed script or launcher leaves workers, which keep their GPUs and disturb the next job. The ranks of torchrun are
    # not in the process group of the script; their environment contains the id of the job.
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
