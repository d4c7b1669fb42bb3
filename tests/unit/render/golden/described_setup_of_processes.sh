#!/bin/bash
#SBATCH --job-name=figure-1-port6400
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --time=1:00:00
#SBATCH --no-requeue
#SBATCH --output=/runs/20261121-092041-bd57/job/batch.txt
# p/figure-1 port=6400 at scale paper on site: job 000000000001
# 1 node: 4 processes
# This script is complete: `sbatch` it. It needs bash and Slurm, and the files of the command at its end.
# shellcheck disable=SC2016  # text in single quotes is literal, or expanded by each task
set -euo pipefail
umask 027

folder=${1:-/runs/20261121-092041-bd57/job}
own=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-none}}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
# Slurm may start a job again that has ended. Its records stay as they are: the new run gets a folder of its own.
first=$folder run=1
while [ "$own" != none ] && [ -e "$folder/end" ] && [ ! -e "$folder/cancelled" ] &&
  [ "$(cat -- "$folder/claimed" 2>/dev/null)" = "$own" ]; do
  folder=$first.run$((++run))
done
[ "$folder" = "$first" ] || { mkdir -p -- "$folder" && exec >>"$folder/batch.txt" 2>&1; }
mkdir -p "$folder"
# A cancelled job does not start, nor a second copy of it that a slow scheduler accepted.
if [ -e "$folder/cancelled" ]; then
  echo 'repro: not started: it was cancelled, or given up, before' >&2
  exit 143
fi
# A claim that cannot be written whole, on a full disk, is removed.
claim() (set -o noclobber && exec 3>"$folder/claimed" && { printf '%s\n' "$own" >&3 || ! rm -f -- "$folder/claimed"; })
if ! claim 2>/dev/null && claimant=$(cat -- "$folder/claimed" 2>/dev/null || :) &&
  [ "$claimant" != "$own" ] && { [ -n "${1:-}" ] || [ ! -e "$folder/end" ]; }; then
  reason="job $claimant runs it already"
  [ -n "$claimant" ] || reason="$folder/claimed is missing or empty, as after a full disk; remove it to start the job"
  echo "repro: not started: $reason" >&2
  exit 95
fi

# The record of the job beside its log: where it runs, and how it ended if no scheduler lists it.
write_record() {
  local exit_code=$?
  printf '%s\n' "$@" "exit_code=$exit_code" "at=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "host=$(hostname)" \
    "scheduler_id=$own" "pid=$$" \
    >"$folder/.record.$$"
}
rm -f "$folder"/{gpus.*.csv,fingerprint.*.txt,setup.ready} "$folder/end"
write_record 'event=start' && mv "$folder/.record.$$" "$folder/start"
trap 'write_record "event=end" && mv "$folder/.record.$$" "$folder/end"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# It may have been cancelled while it started, before there was a process to signal.
[ ! -e "$folder/cancelled" ] || exit 143

# Variables of the submitting shell that would change what Python imports.
unset PYTHONPATH PYTHONHOME PYTHONUSERBASE PYTHONPLATLIBDIR

# Files of the command, which runs in the job's folder.
install -D -m 750 -- /runs/programs/redis-benchmark-818ab1542c5c/monitor.sh "$folder"/monitor.sh

# Run a command in a process group of its own, beside this shell.
in_group() {
  exec 8>&2 2>/dev/null # where bash reports that an earlier group has ended
  set -m
  "$@" 2>&8 8>&- &
  set +m
  exec 2>&8 8>&-
  groups+=("$!")
}
# Run a step of the setup: its number, its name and its words. A step that ends before the command fails the job.
run_step() {
  local number=$1 name=$2
  shift 2
  exec 3>&2 >"setup-$number.txt" 2>&1
  trap exit TERM
  "$@"
  echo "repro: setup: $name ended with exit code $? before the command; setup-$number.txt has its output" >&3
  kill -USR1 $$
}
# Wait until a step is ready: its name, the longest time in seconds, and the words of its probe.
await_step() {
  local name=$1 longest_s=$2
  shift 2
  SECONDS=0
  until timeout --kill-after=1 10 "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$longest_s" ]; then
      echo "repro: setup: $name is not ready after $longest_s s" >&2
      exit 1
    fi
    sleep 0.2
  done
}
signal_groups() {
  local group
  for group in "${groups[@]}"; do kill -s "$1" -- "-$group" 2>/dev/null || :; done
}
# End the steps; those that still run after 5 s are killed.
end_groups() {
  exec 2>/dev/null
  signal_groups TERM
  set -m
  { sleep 5 && signal_groups KILL; } >/dev/null &
  set +m
  wait "${groups[@]}"
  kill -- "-$!"
}
# Start the steps, wait until each is ready, and run the command.
with_setup() {
  groups=()
  trap end_groups EXIT
  trap 'exit 1' USR1
  trap 'exit 143' TERM
  in_group run_step 1 redis-server \
    redis-server --port 6400
  await_step redis-server 60 \
    redis-cli -p 6400 ping
  in_group run_step 2 bash \
    bash monitor.sh
  await_step bash 300 \
    grep -aEqe 'it.s (up|ready)' setup-2.txt
  : >setup.ready # the other processes wait for this file
  in_group "$@"
  wait "$!"
}
start=$(declare -f in_group run_step await_step signal_groups end_groups with_setup)
start+='
if [ "$RANK" != 0 ]; then
  until [ -e setup.ready ]; do sleep 0.2; done
  exec "$@"
fi'
start+='
with_setup "$@"'

# Variables of the submitting shell that srun would use as options.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_GPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_DISTRIBUTION SLURM_EXACT SLURM_EXPORT_ENV \
  SLURM_HINT SLURM_MPI_TYPE SLURM_OVERCOMMIT SLURM_OVERLAP SLURM_THREADS SLURM_WHOLE "${!SLURM_STEP@}"
# Rendezvous and rank variables are set here, because a site may not have the hook that sets them.
# `read` takes the first name. On a long list `| head -n 1` would end scontrol, and with pipefail this script.
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# Rank 0 is on the first node, unless a file or the distribution `arbitrary` orders the ranks. Then srun prints its node.
if [ -n "${SLURM_HOSTFILE:-}" ]; then
  MASTER_ADDR=$(srun --nodes=1 --ntasks=4 --ntasks-per-node=4 \
    bash -c '[ "$SLURM_PROCID" != 0 ] || echo "$SLURMD_NODENAME"')
fi
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

# Start of each task. Its variables are set last, so that no image or profile replaces them.
# Python imports from the working folder first, so that is a folder of the job.
task='
cd -- "$3" || exit
export MASTER_ADDR=$1 MASTER_PORT=$2
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=4
export PYTHONUNBUFFERED=1
# Print the fingerprint of this node. Each command may fail, or hang for 10 s. Lines that identify a device or a process
# are left out.
fingerprint() {
  local hidden="^[^:]*(serial|uuid|guid| pdi|host id)[^:]*:|^ +(process id|name) *:|[0-9a-f]{8}(-[0-9a-f]{4}){3}-"
  probe() {
    echo "\$ $1 ${2:-}"
    timeout --foreground --kill-after=1 10 "$@" 2>&1 </dev/null | grep -aivE "$hidden" || :
  }
  probe uname -a
  probe lscpu
}
[ "$SLURM_LOCALID" != 0 ] || (fingerprint 2>/dev/null >"fingerprint.${SLURMD_NODENAME:-$(uname -n)}.txt" &)
shift 3
'"$start"

srun \
  --nodes=1 \
  --ntasks=4 \
  --ntasks-per-node=4 \
  --export=ALL \
  --kill-on-bad-exit=1 \
  --output="${folder//%/%%}/log.txt" \
  bash -c "$task" task "$MASTER_ADDR" "$MASTER_PORT" "$folder" \
  redis-benchmark -p 6400 \
  --csv
