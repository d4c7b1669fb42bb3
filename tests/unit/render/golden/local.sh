#!/bin/bash
# sc21/figure-13 pp=1,tp=4,gbs=4 at scale cpu on local: job 000000000001
# 4 processes: tensor-parallel 4, pipeline-parallel 1, data-parallel 1; 4 microbatches of 1
# This script is complete: `bash` it. It needs bash, and the files of the command at its end.
# shellcheck disable=SC2016  # text in single quotes is literal, or expanded by each task
set -euo pipefail
umask 027

folder=${1:-/runs/20261121-092041-bd57/pp1-tp4-gbs4}
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
rm -f "$folder/end"
write_record 'event=start' && mv "$folder/.record.$$" "$folder/start"
trap 'write_record "event=end" && mv "$folder/.record.$$" "$folder/end"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# It may have been cancelled while it started, before there was a process to signal.
[ ! -e "$folder/cancelled" ] || exit 143

export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TITLE='it'"'"'s $HOME'
export PYTHONPATH=/runs/programs/pretrain-000000000000${PYTHONPATH:+:$PYTHONPATH}

export CUDA_VISIBLE_DEVICES= # no GPU, also on a machine with GPUs

timeout --foreground --kill-after=60 1800 \
  /opt/venv/bin/python -u -m orchestrator.pretrain.launch \
  --nproc-per-node=4 \
  --tensor-model-parallel-size 4 \
  --pipeline-model-parallel-size 1 \
  --micro-batch-size 1 \
  --global-batch-size 4 \
  --num-layers 4 \
  --hidden-size 256 \
  --num-attention-heads 8 \
  --seq-length 64 \
  --vocab-size 1024 \
  --train-iters 8 \
  --log-interval 1 \
  --hidden-dropout 0.0 \
  --attention-dropout 0.0 \
  --recompute-granularity full \
  --use-distributed-optimizer \
  >"$folder/log.txt" 2>&1
