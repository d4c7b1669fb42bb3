#!/bin/bash
# Run 1 job on this machine, one at a time, also across queues, so that no job disturbs a measurement.
set -u
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
)
# Keep the job of $folder from starting: write the reason to its output, and the record of its end.
not_started() {
  printf '%s\n' "repro: not started: $1"
  printf '%s\n' 'event=end' 'exit_code=95' "at=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "host=$(hostname)" \
    "scheduler_id=$own" "pid=$$" >"$folder/.record.$$" && mv "$folder/.record.$$" "$folder/end"
}
# Links and pipes are not read.
plain() { [ -f "$1" ] && [ ! -L "$1" ]; }
# Return whether the program in log $1 trained: no loss is missing (which is NaN), and it skipped at most half of the
# iterations. It also needs $2 samples, or the last planned iteration. reading/statistics.py has the same rules.
trained() {
  LC_ALL=C awk -v samples="$2" -v warm_up=0 '
    match($0, /iteration +[0-9]+\/ *[0-9]+ \|/) && /elapsed time per iteration \(ms\):/ {
      head = substr($0, RSTART + 9)
      if (head + 0 < number[lines]) lines = 0 # the program started again
      if (head + 0 != number[lines]) lines++
      number[lines] = head + 0
      planned = substr(head, index(head, "/") + 1) + 0
      has_loss[lines] = /\| lm loss: /
      skipped[lines] = match($0, /number of skipped iterations: *[0-9]+/) ? substr($0, RSTART + 29) + 0 : 0
    }
    END {
      step = number[2] - number[1]
      later = lines > 2 ? number[3] - number[2] : 1
      start_up = lines > 1 && (step < later || (number[1] == 1 && step > 1)) ? 2 : 1
      interval = number[start_up]
      for (i = start_up + 1; i <= lines; i++)
        if (i == start_up + 1 || number[i] - number[i - 1] < interval) interval = number[i] - number[i - 1]
      for (i = 1; i <= lines; i++) {
        if (!has_loss[i] && skipped[i] < interval && skipped[i] < number[i]) exit 1
        if (i >= start_up) all_skipped += skipped[i]
        if (i > start_up && number[i] > warm_up && !skipped[i]) used++
      }
      exit !lines || 2 * all_skipped > number[lines] || (used < samples && number[lines] < planned)
    }' "$1"
}
# Print how the job in folder $1 failed: a class from the end of its log, else its exit code. Print nothing if it has no
# end record, ended with 0, did not start (95), was cancelled (143), or reached its time limit with enough samples.
failure_kind() {
  local code
  plain "$1/end" && code=$(grep -Em 1 '^exit_code=[1-9][0-9]*$' "$1/end") && [ "$code" != exit_code=95 ] || return 0
  if plain "$1/log.txt" && _=$(tail -c 1048576 -- "$1/log.txt" | LC_ALL=C grep -aEc 'OutOfMemoryError|(CUDA|Cuda|cuda|HIP|THC).{0,60}out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED'); then
    echo gpu-oom
    return
  fi
  if plain "$1/log.txt" && _=$(tail -c 1048576 -- "$1/log.txt" | LC_ALL=C grep -aEc 'DUE TO TIME LIMIT'); then
    trained "$1/log.txt" 10 || echo timeout
    return
  fi
  if [ "$code" != exit_code=143 ] && { [ "$code" != exit_code=124 ] || ! trained "$1/log.txt" 10; }; then
    echo "exit code ${code#*=}"
  fi
}
# Return whether the end record and the log in folder $1 have what those of a verified or partial canary have.
passes() {
  plain "$1/end" && plain "$1/log.txt" || return 1
  LC_ALL=C grep -aEqs '^inside_image=1/1$' "$1/end" || return 1
  LC_ALL=C grep -aEqs 'iteration +[0-9]+/ *20 ' "$1/log.txt" || return 1
  LC_ALL=C grep -aEqs 'using world size: 8, .*tensor-model-parallel size: 2[^0-9].*pipeline-model-parallel size: 4([^0-9]|$)' "$1/log.txt" || return 1
  ! LC_ALL=C grep -aEqs 'number of nan iterations: *[1-9]|(lm loss|grad norm): *[-+]?([nN][aA][nN]|[iI][nN][fF])' "$1/log.txt" || return 1
  if LC_ALL=C grep -Eqs '^exit_code=0$' "$1/end"; then
    LC_ALL=C grep -aEqs 'iteration +20/ *20 ' "$1/log.txt" && trained "$1/log.txt" 0
    return
  fi
  # It reached its time limit: timeout(1) ended it, or Slurm.
  { LC_ALL=C grep -Eqs '^exit_code=124$' "$1/end" ||
    _=$(tail -c 1048576 -- "$1/log.txt" | LC_ALL=C grep -aEc 'DUE TO TIME LIMIT'); } &&
    trained "$1/log.txt" 10
}
may_start() {
  local count kind end
  read -r count kind < <(for end in /runs/20261121-092041-bd57/*/end; do failure_kind "${end%/end}"; done |
    sort | uniq -c | sort -rn | head -n 1) || :
  if [ "${count:-0}" -ge 2 ]; then
    not_started "$count jobs of this run have failed in the same way: $kind"
    return 1
  fi
  local canary='/runs/20261121-092041-bd57/a b'
  if [ "$folder" != "$canary" ] && ! passes "$canary"; then
    not_started 'its canary, ''pp=1 '"'"'quoted'"'"''', is not verified'
    return 1
  fi
  return 0
}
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
# Wait until this job, or the queue that runs it, has ended.
until [ -e '/runs/20261121-092041-bd57/before this'/end ] || [ -e '/runs/20261121-092041-bd57/before this'/cancelled ] || ! kill -0 4321 2>/dev/null; do
  sleep 0.2
done
# Return 0 if one of these processes still runs: until its end it keeps its memory, also of GPUs.
still_there() {
  local pid
  for pid; do ! grep -qs '^State:.[^ZX]' "/proc/$pid/status" || return 0; done
  return 1
}
exec 9>>/runs/.lock
for ((i = 0; i < 1; i++)); do
  folder=${jobs[2 * i + 1]}
  mkdir -p -- "$folder"
  own=$$_$i
  flock 9
  if [ ! -e "$folder/cancelled" ] && may_start >"$folder/batch.txt" 2>&1; then
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
