#!/bin/bash
# p/figure-1 gpus=16,from=8,to=17179869184 at scale paper on site: job 000000000001
# 2 nodes, 16 GPUs: 16 processes
# This script is complete: `bash` it. It needs bash, Open MPI and the nodes of its hostfile, and the files of the command at its end.
# shellcheck disable=SC2016  # text in single quotes is literal, or expanded by each task
set -euo pipefail
umask 027

folder=${1:-/runs/20261121-092041-bd57/job}
own=${REPRO_LOCAL_ID:-none}
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
rm -f "$folder"/{gpus.*.csv,fingerprint.*.txt} "$folder/end"
write_record 'event=start' && mv "$folder/.record.$$" "$folder/start"
trap 'write_record "event=end" && mv "$folder/.record.$$" "$folder/end"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# It may have been cancelled while it started, before there was a process to signal.
[ ! -e "$folder/cancelled" ] || exit 143

# Variables of the submitting shell that would change what Python imports.
unset PYTHONPATH PYTHONHOME PYTHONUSERBASE PYTHONPLATLIBDIR

# The first host of the hostfile.
read -r MASTER_ADDR _ < <(grep -v '^[[:space:]]*\(#\|$\)' -- /shared/hosts)
MASTER_PORT=$((20000 + $$ % 10000))

# Start of each process. Its variables are set last, so that no setting of a node replaces them.
# Python imports from the working folder first, so that is a folder of the job.
task='
cd -- "$3" || exit
export MASTER_ADDR=$1 MASTER_PORT=$2
export RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export PYTHONUNBUFFERED=1
export NCCL_DEBUG=WARN
export PATH=/opt/nccl-tests/build${PATH:+:$PATH}
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
  probe cat /proc/driver/nvidia/version
  probe nvidia-smi -q
  probe nvidia-smi topo -m
}
[ "$LOCAL_RANK" != 0 ] || (fingerprint 2>/dev/null >"fingerprint.$(uname -n).txt" &)
shift 3
exec "$@"'

timeout --foreground --kill-after=60 3600 \
  mpirun \
  --hostfile /shared/hosts \
  -np 16 \
  --map-by ppr:8:node \
  --bind-to none \
  bash -c "$task" task "$MASTER_ADDR" "$MASTER_PORT" "$folder" \
  all_reduce_perf -b 8 -e 17179869184 -f 2 -g 1 -c 1 \
  >"$folder/log.txt" 2>&1
