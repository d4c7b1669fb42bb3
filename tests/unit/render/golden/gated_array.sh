#!/bin/bash
#SBATCH --job-name=figure-13-paper
#SBATCH --account=proj
#SBATCH --partition=gpus
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --mem=0
#SBATCH --time=0:30:00
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --array=0-0%1
#SBATCH --output=/runs/20261121-092041-bd57/submissions/%A_%a.txt
# 1 job with the same resources, as one array: element i runs script i. Each script is complete.
set -euo pipefail
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
)
job=${jobs[2 * SLURM_ARRAY_TASK_ID]}
folder=${jobs[2 * SLURM_ARRAY_TASK_ID + 1]}
own=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
# Slurm may start a job again that has ended. Its records stay as they are: the new run gets a folder of its own.
first=$folder run=1
while [ "$own" != none ] && [ -e "$folder/end" ] && [ ! -e "$folder/cancelled" ] &&
  [ "$(cat -- "$folder/claimed" 2>/dev/null)" = "$own" ]; do
  folder=$first.run$((++run))
done
mkdir -p -- "$folder"
exec >>"$folder/batch.txt" 2>&1
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
may_start || exit 95
exec bash "$job" "$folder"
