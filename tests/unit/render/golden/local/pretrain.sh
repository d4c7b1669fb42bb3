#!/bin/bash
# sc21/figure-13 pp=2,tp=2,gbs=32 at scale quad on local: job 000000000001
# The profile is merged from clusters/local.yaml, clusters/local.local.yaml
# 4 GPUs: tensor-parallel 2, pipeline-parallel 2, data-parallel 1; 32 microbatches of 1
# This script is complete: `bash` it. It needs bash, and the files of the command at its end.
# shellcheck disable=SC2016  # text in single quotes is literal, or expanded by each task
set -euo pipefail
umask 027

folder=${1:-/runs/20261121-092041-bd57/pp2-tp2-gbs32}
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
# Start a command beside the program. The end of this script ends its process group.
beside() {
  set -m
  "$@" &
  set +m
}
finish() {
  write_record 'event=end' && mv "$folder/.record.$$" "$folder/end"
  local group
  for group in $(jobs -pr); do kill -- "-$group" 2>/dev/null || :; done
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# It may have been cancelled while it started, before there was a process to signal.
[ ! -e "$folder/cancelled" ] || exit 143

# Variables of the submitting shell that would change what Python imports.
unset PYTHONPATH PYTHONHOME PYTHONUSERBASE PYTHONPLATLIBDIR

export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export PYTHONSAFEPATH=1
export PYTHONPATH=/runs/programs/pretrain-000000000000${PYTHONPATH:+:$PYTHONPATH}

# Use 4 GPUs: the first of CUDA_VISIBLE_DEVICES, or of all GPUs if it is not set.
export CUDA_DEVICE_ORDER=${CUDA_DEVICE_ORDER:-PCI_BUS_ID} # the numbers of nvidia-smi
IFS=', ' read -ra gpus <<<"${CUDA_VISIBLE_DEVICES-0,1,2,3}"
if [ -z "${gpus[3]:-}" ]; then
  echo "repro: not started: it needs 4 GPUs, and CUDA_VISIBLE_DEVICES names no more than '$CUDA_VISIBLE_DEVICES'" >&2
  exit 2
fi
CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${gpus[*]:0:4}")
export CUDA_VISIBLE_DEVICES

# Python imports from the working folder first, so that is a folder of the job.
cd -- "$folder"
folder=$PWD
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
  probe /code/venv/bin/python -c 'import sys
from importlib import metadata, util
print("Python", sys.version)
print(*sorted({"%s %s" % (package.metadata["Name"], package.version) for package in metadata.distributions()}), sep="\n")
print(open(util.find_spec("torch").origin.replace("__init__", "version")).read())'
  probe /code/venv/bin/python -c 'import ctypes
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
print("NCCL outside of the packages:", version.value)'
  probe cat /proc/driver/nvidia/version
  probe nvidia-smi -q
  probe nvidia-smi topo -m
}
beside fingerprint 2>/dev/null >"$folder/fingerprint.$(hostname).txt"

# Sample memory, power and clocks of the GPUs at an interval while the program runs.
beside timeout --foreground 1800 \
nvidia-smi --id="$CUDA_VISIBLE_DEVICES" --format=csv,nounits --loop=1 \
  --query-gpu=timestamp,index,memory.used,memory.total,utilization.gpu,power.draw,clocks.sm,temperature.gpu,clocks_throttle_reasons.active \
  >"$folder/gpus.$(hostname).csv" 2>&1
timeout --foreground --kill-after=60 1800 \
  /code/venv/bin/python -u -m orchestrator.pretrain.launch \
  --nproc-per-node=4 \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 \
  --micro-batch-size 1 \
  --global-batch-size 32 \
  --num-layers 32 \
  --hidden-size 4096 \
  --num-attention-heads 32 \
  --seq-length 2048 \
  --vocab-size 51200 \
  --train-iters 8 \
  --log-interval 1 \
  --hidden-dropout 0.0 \
  --attention-dropout 0.0 \
  --recompute-granularity full \
  --bf16 \
  --use-distributed-optimizer \
  >"$folder/log.txt" 2>&1
