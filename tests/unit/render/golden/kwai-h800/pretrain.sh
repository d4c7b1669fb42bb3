#!/bin/bash
# sc21/figure-13 pp=2,tp=2,gbs=32 at scale quad on kwai-h800: job 000000000001
# The profile is merged from clusters/kwai-h800.yaml, clusters/kwai-h800.local.yaml
# 4 GPUs: tensor-parallel 2, pipeline-parallel 2, data-parallel 1; 32 microbatches of 1
# This script is complete: `bash` it. It needs bash, Open MPI and the nodes of its hostfile, and the files of the command at its end.
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
trap 'write_record "event=end" && mv "$folder/.record.$$" "$folder/end"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# It may have been cancelled while it started, before there was a process to signal.
[ ! -e "$folder/cancelled" ] || exit 143

# Variables of the submitting shell that would change what Python imports.
unset PYTHONPATH PYTHONHOME PYTHONUSERBASE PYTHONPLATLIBDIR

# The first host of the hostfile.
read -r MASTER_ADDR _ < <(grep -v '^[[:space:]]*\(#\|$\)' -- /etc/mpi/hostfile)
MASTER_PORT=6002

# Start of each process. Its variables are set last, so that no setting of a node replaces them.
# Python imports from the working folder first, so that is a folder of the job.
task='
cd -- "$3" || exit
export MASTER_ADDR=$1 MASTER_PORT=$2
export RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
unset NCCL_MIN_NRINGS
unset NCCL_MAX_NRINGS
unset NCCL_MIN_NCHANNELS
unset NCCL_MAX_NCHANNELS
unset NCCL_MIN_CTAS
unset NCCL_MAX_CTAS
export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export PYTHONSAFEPATH=1
export HOROVOD_MPI_THREADS_DISABLE=1
export NCCL_IB_DISABLE=0
export NCCL_IB_GID_INDEX=3
export NCCL_IB_HCA=mlx5
export NCCL_IB_QPS_PER_CONNECTION=8
export NCCL_IB_TIMEOUT=19
export NCCL_NET_OVERHEAD=1000
export PYTHONPATH=/runs/programs/pretrain-000000000000${PYTHONPATH:+:$PYTHONPATH}
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
  probe /code/venv/bin/python -c '\''import sys
from importlib import metadata, util
print("Python", sys.version)
print(*sorted({"%s %s" % (package.metadata["Name"], package.version) for package in metadata.distributions()}), sep="\n")
print(open(util.find_spec("torch").origin.replace("__init__", "version")).read())'\''
  probe /code/venv/bin/python -c '\''import ctypes
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
print("NCCL outside of the packages:", version.value)'\''
  probe cat /proc/driver/nvidia/version
  probe nvidia-smi -q
  probe nvidia-smi topo -m
}
[ "$LOCAL_RANK" != 0 ] || (fingerprint 2>/dev/null >"fingerprint.$(uname -n).txt" &)
shift 3
exec "$@"'

timeout --foreground --kill-after=60 1800 \
  mpirun \
  --hostfile /etc/mpi/hostfile \
  -np 4 \
  --map-by ppr:4:node \
  --bind-to none \
  --allow-run-as-root \
  --mca btl self,tcp \
  --mca pml ob1 \
  --mca plm_rsh_num_concurrent 600 \
  --mca routed_radix 600 \
  --mca btl_tcp_if_include bond0 \
  --mca oob_tcp_if_include bond0 \
  --mca btl_openib_allow_ib false \
  bash -c "$task" task "$MASTER_ADDR" "$MASTER_PORT" "$folder" \
  /code/venv/bin/python -u -m orchestrator.pretrain \
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
