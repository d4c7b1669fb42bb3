#!/bin/bash
# sc21/figure-13 pp=1,tp=4,gbs=32 at scale quad on local: job 000000000001
# 4 GPUs: tensor-parallel 4, pipeline-parallel 1, data-parallel 1; 32 microbatches of 1
# This script is complete: `bash` it. It needs bash, and the files of the command at its end.
# shellcheck disable=SC2016  # text in single quotes is literal, or expanded by each task
set -euo pipefail
umask 027

folder=${1:-/runs/20261121-092041-bd57/pp1-tp4-gbs32}
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
rm -f "$folder"/gpus.*.csv "$folder/end"
write_record 'event=start' && mv "$folder/.record.$$" "$folder/start"
trap 'write_record "event=end" && mv "$folder/.record.$$" "$folder/end"; [ -z "${sampler:-}" ] || kill "$sampler" 2>/dev/null || :' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# It may have been cancelled while it started, before there was a process to signal.
[ ! -e "$folder/cancelled" ] || exit 143

export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TITLE='it'"'"'s $HOME'
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

# Sample memory, power and clocks of the GPUs at an interval while the program runs.
timeout --foreground 1800 \
nvidia-smi --id="$CUDA_VISIBLE_DEVICES" --format=csv,nounits --loop=1 \
  --query-gpu=timestamp,index,memory.used,memory.total,utilization.gpu,power.draw,clocks.sm,temperature.gpu,clocks_throttle_reasons.active \
  >"$folder/gpus.$(hostname).csv" 2>&1 &
sampler=$!
timeout --foreground --kill-after=60 1800 \
  /opt/venv/bin/python -u -m orchestrator.pretrain.launch \
  --nproc-per-node=4 \
  --tensor-model-parallel-size 4 \
  --pipeline-model-parallel-size 1 \
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
