#!/bin/bash
#SBATCH --job-name=figure-13-pp2-tp2-gbs32
#SBATCH --account="proj #7"
#SBATCH --qos=normal
#SBATCH --constraint=h100&ib
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --time=0:30:00
#SBATCH --gres=gpu:h100:4
#SBATCH --no-requeue
#SBATCH --mail-type=FAIL
#SBATCH --mcs-label="it's \"ours\""
#SBATCH --output=/runs/20261121-092041-bd57/pp2-tp2-gbs32/batch.txt
# sc21/figure-13 pp=2,tp=2,gbs=32 at scale quad on plain: job 000000000003
# 4 GPUs: tensor-parallel 2, pipeline-parallel 2, data-parallel 1; 32 microbatches of 1
# This script is complete: `sbatch` it. It needs bash and Slurm, and the files of the command at its end.
# shellcheck disable=SC2016  # text in single quotes is literal, or expanded by each task
set -euo pipefail
umask 027

folder=${1:-/runs/20261121-092041-bd57/pp2-tp2-gbs32}
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
rm -f "$folder"/{gpus.*.csv,fingerprint.*.txt} "$folder/end"
write_record 'event=start' && mv "$folder/.record.$$" "$folder/start"
trap 'write_record "event=end" && mv "$folder/.record.$$" "$folder/end"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# It may have been cancelled while it started, before there was a process to signal.
[ ! -e "$folder/cancelled" ] || exit 143

# Variables of the submitting shell that would change what Python imports.
unset PYTHONPATH PYTHONHOME PYTHONUSERBASE PYTHONPLATLIBDIR

# Lines of the cluster's profile. Module systems and conda read variables that are not set.
set +u
module load cuda/12.4
umask 027
set -u

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
export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export PYTHONSAFEPATH=1
export NCCL_DEBUG=WARN
export TITLE='\''it'\''"'\''"'\''s $HOME, `here`'\''
export RETRIES=3
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
  probe '\''/opt/my env/bin/python'\'' -c '\''import sys
from importlib import metadata, util
print("Python", sys.version)
print(*sorted({"%s %s" % (package.metadata["Name"], package.version) for package in metadata.distributions()}), sep="\n")
print(open(util.find_spec("torch").origin.replace("__init__", "version")).read())'\''
  probe '\''/opt/my env/bin/python'\'' -c '\''import ctypes
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
print("NCCL outside of the packages:", version.value)'\''
  probe cat /proc/driver/nvidia/version
  probe nvidia-smi -q
  probe nvidia-smi topo -m
}
[ "$SLURM_LOCALID" != 0 ] || (fingerprint 2>/dev/null >"fingerprint.${SLURMD_NODENAME:-$(uname -n)}.txt" &)
shift 3
exec "$@"'

srun \
  --nodes=1 \
  --ntasks=4 \
  --ntasks-per-node=4 \
  --cpus-per-task=12 \
  --export=ALL \
  --kill-on-bad-exit=1 \
  --label \
  --cpu-bind=cores \
  --output="${folder//%/%%}/log.txt" \
  bash -c "$task" task "$MASTER_ADDR" "$MASTER_PORT" "$folder" \
  '/opt/my env/bin/python' -u -m orchestrator.pretrain \
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
  --use-distributed-optimizer
