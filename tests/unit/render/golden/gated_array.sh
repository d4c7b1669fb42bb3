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
# 1 job that asks for the same resources, as one array: element i runs script i, each complete in itself.
set -euo pipefail
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
)
job=${jobs[2 * SLURM_ARRAY_TASK_ID]}
folder=${jobs[2 * SLURM_ARRAY_TASK_ID + 1]}
mkdir -p -- "$folder"
exec >>"$folder/batch.txt" 2>&1
own=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
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
may_start || exit 95
exec bash "$job" "$folder"
