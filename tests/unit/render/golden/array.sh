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
#SBATCH --array=0-1%4
#SBATCH --output=/runs/20261121-092041-bd57/submissions/%A_%a.txt
# 2 jobs with the same resources, as one array: element i runs script i. Each script is complete.
set -euo pipefail
umask 027
jobs=( # script and folder
  /runs/20261121-092041-bd57/a/job.sh /runs/20261121-092041-bd57/a
  /runs/20261121-092041-bd57/b/job.sh /runs/20261121-092041-bd57/b
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
exec bash "$job" "$folder"
