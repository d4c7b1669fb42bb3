#!/bin/bash
# 1 jobs on this machine, one after another, also across queues: measurements must not disturb one another.
set -u
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
)
# Keeps the job of $folder from starting: the reason where its output would be, and the record of its end.
not_started() {
  printf '%s\n' "repro: not started: $1"
  printf '%s\n' 'event=end' 'exit_code=95' "at=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "host=$(hostname)" \
    "scheduler_id=$own" "pid=$$" >"$folder/.record.$$" && mv "$folder/.record.$$" "$folder/end"
}
# A link or a pipe in a record's place is neither followed nor waited for.
plain() { [ -f "$1" ] && [ ! -L "$1" ]; }
may_start() {
  local count code
  read -r count code < <(cat /runs/20261121-092041-bd57/*/end 2>/dev/null | grep -E '^exit_code=[1-9]' | grep -vE '=(95|143)$' |
    sort | uniq -c | sort -rn | head -n 1) || :
  if [ "${count:-0}" -ge 2 ]; then
    not_started "$count jobs of this run have ended with exit code ${code##*=}"
    return 1
  fi
  # Whether it was verified is told from its log: its last iteration, and no loss that is no number.
  local canary='/runs/20261121-092041-bd57/a b'
  if [ "$folder" != "$canary" ] && { ! plain "$canary/end" || ! plain "$canary/log.txt" ||
    ! grep -Eqs '^exit_code=0$' "$canary/end" ||
    ! grep -Eqs 'iteration +20/ *20 ' "$canary/log.txt" ||
    grep -Eqs 'lm loss: *[-+]?(nan|inf)' "$canary/log.txt"; }; then
    not_started 'its canary, ''pp=1 '"'"'quoted'"'"''', was not verified'
    return 1
  fi
  return 0
}
# Asked for: not before that one has ended, or the queue that was to run it has.
until [ -e '/runs/20261121-092041-bd57/before this'/end ] || [ -e '/runs/20261121-092041-bd57/before this'/cancelled ] || ! kill -0 4321 2>/dev/null; do
  sleep 0.2
done
# Whether one of them has not ended: until it has, it keeps its memory, of GPUs as well.
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
