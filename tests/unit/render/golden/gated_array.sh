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
# Print how the job in folder $1 failed: a class from the end of its log, else its exit code. Print nothing if it has no
# end record, ended with 0, did not start (95) or was cancelled (143).
failure_kind() {
  local code
  plain "$1/end" && code=$(grep -Em 1 '^exit_code=[1-9][0-9]*$' "$1/end") && [ "$code" != exit_code=95 ] || return 0
  if plain "$1/log.txt" && _=$(tail -c 1048576 -- "$1/log.txt" | LC_ALL=C grep -aEc 'OutOfMemoryError|(CUDA|Cuda|cuda|THC).{0,60}out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED'); then
    echo gpu-oom
    return
  fi
  if plain "$1/log.txt" && _=$(tail -c 1048576 -- "$1/log.txt" | LC_ALL=C grep -aEc 'DUE TO TIME LIMIT'); then
    echo timeout
    return
  fi
  [ "$code" = exit_code=143 ] || echo "exit code ${code#*=}"
}
may_start() {
  local count kind end
  read -r count kind < <(for end in /runs/20261121-092041-bd57/*/end; do failure_kind "${end%/end}"; done |
    sort | uniq -c | sort -rn | head -n 1) || :
  if [ "${count:-0}" -ge 2 ]; then
    not_started "$count jobs of this run have failed in the same way: $kind"
    return 1
  fi
  # The canary passes if its end record and its log have what a verified job has.
  local canary='/runs/20261121-092041-bd57/a b'
  if [ "$folder" != "$canary" ] && { ! plain "$canary/end" || ! plain "$canary/log.txt" ||
    ! LC_ALL=C grep -aEqs '^exit_code=0$' "$canary/end" ||
    ! LC_ALL=C grep -aEqs '^inside_image=1/1$' "$canary/end" ||
    ! LC_ALL=C grep -aEqs 'iteration +20/ *20 ' "$canary/log.txt" ||
    ! LC_ALL=C grep -aEqs 'using world size: 8, .*tensor-model-parallel size: 2[^0-9].*pipeline-model-parallel size: 4([^0-9]|$)' "$canary/log.txt" ||
    LC_ALL=C grep -aEqs 'number of nan iterations: *[1-9]|(lm loss|grad norm): *[-+]?([nN][aA][nN]|[iI][nN][fF])' "$canary/log.txt"; }; then
    not_started 'its canary, ''pp=1 '"'"'quoted'"'"''', was not verified'
    return 1
  fi
  return 0
}
may_start || exit 95
exec bash "$job" "$folder"
