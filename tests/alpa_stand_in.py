"""Stand-in for Alpa's benchmark and its GPUs: a `python` in front of PATH that prints what benchmark_gpt_one_case.py
prints, at once and with made-up times.
"""

from __future__ import annotations

import json
from pathlib import Path

# Its behaviour is a word in the file `behave`. The rates are near those of results_e2e_ref.tsv for 1, 4 and 8 GPUs.
PROGRAM = r"""#!/bin/bash
# A stand-in for the benchmark of the tests: it trains nothing.
here=$(dirname "$(dirname "$0")")
behave=$(cat "$here/behave" 2>/dev/null || echo well)
world=${WORLD_SIZE:-1} rank=${RANK:-0} last=${RANK:-}
for word; do
  case $word in
    -c) exit ;; # the job that compiles the kernels
    --nproc-per-node=*) world=${word#*=} last=$((world - 1)) ;;
  esac
done
table=${*: -1}.tsv
tuple=${*: -2:1}
IFS=', ' read -ra v <<<"${tuple//[()]/}"
batch=${v[1]} seq=${v[2]} hidden=${v[3]} layers=${v[4]} heads=${v[5]} vocab=${v[6]}
dp=${v[7]} tp=${v[8]} pp=${v[11]} micro=$((v[1] / v[7] / v[12]))
rates=([1]=47.1 [4]=55.2 [8]=50.9)
tflops=${rates[$((dp * tp * pp))]} logged_batch=$batch ran=$world
in_table=$tflops
case $behave in
  nan) tflops=nan in_table=nan ;;
  two-rates) in_table=60.1 ;;
  half) logged_batch=$((batch / 2)) ;;
  lone) ran=1 ;;
esac
setting() {
  local dots
  printf -v dots '%*s' $((48 - ${#1})) ''
  printf '  %s %s %s\n' "$1" "${dots// /.}" "$2"
}
if [ "$rank" = 0 ]; then
  echo "$behave $world" >>"$here/started"
  echo "using world size: $ran, data-parallel-size: $dp, tensor-model-parallel size: $tp," \
    "pipeline-model-parallel size: $pp "
  echo "------------------------ arguments ------------------------"
  setting activations_checkpoint_method uniform
  setting attention_dropout 0.1
  setting data_parallel_size $dp
  setting DDP_impl local
  setting global_batch_size $logged_batch
  setting hidden_dropout 0.1
  setting hidden_size $hidden
  setting loss_scale 8.0
  setting max_position_embeddings $seq
  setting micro_batch_size $micro
  setting num_attention_heads $heads
  setting num_layers $layers
  setting params_dtype torch.float16
  setting pipeline_model_parallel_size $pp
  setting scatter_gather_tensors_in_pipeline True
  setting seq_length $seq
  setting tensor_model_parallel_size $tp
  setting virtual_pipeline_model_parallel_size None
  setting world_size $ran
  echo "-------------------- end of arguments ---------------------"
  per_layer=$(((12 * hidden * hidden + 7 * hidden) / tp + 6 * hidden))
  for ((stage = 0; stage < pp; stage++)); do
    count=$((layers / pp * per_layer))
    ((stage > 0)) || count=$((count + vocab / tp * hidden + seq * hidden))
    ((stage < pp - 1)) || count=$((count + 2 * hidden + (pp > 1 ? vocab / tp * hidden : 0)))
    for ((t = 0; t < tp; t++)); do
      echo " > number of parameters on (tensor, pipeline) model parallel rank ($t, $stage): $count"
    done
  done
  case $behave in
    killed) kill -9 $$ ;;
    gated) until [ -e "$here/go" ]; do sleep 0.1; done ;;
    oom)
      echo "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.78 GiB total capacity;" \
        "14.22 GiB already allocated; 312.75 MiB free; 14.31 GiB reserved in total by PyTorch)" >&2
      exit 1
      ;;
  esac
fi
if [ "$last" = $((world - 1)) ]; then
  echo "time (ms) | forward-compute: 12614.31 | backward-compute: 36877.44 | optimizer: 89.06"
fi
if [ "$rank" = 0 ] && [ "$behave" != silent ]; then
  parameters=$((layers * (12 * hidden * hidden + 13 * hidden - 2 * hidden) + vocab * (hidden + 1)))
  printf -v digits '%010d' $parameters
  count=${digits:0:${#digits}-9}.${digits: -9}
  while [ "${count: -1}" = 0 ]; do count=${count%0}; done
  hosts=$((world <= 8 ? 1 : world / 8)) devices=$((world <= 8 ? world % 8 : 8))
  value="{'tflops': $tflops, 'parameter_count': $count}" at=$(date +%s.%N)
  printf 'e2e\tp3.16\t%s\t%s\tgpt\tmegatron\t%s\t%s\n' $hosts $devices "${value/$tflops/$in_table}" "$at" >>"$table"
  printf 'exp_name: e2e  instance: p3.16  num_hosts: %s  num_devices_per_host: %s  ' $hosts $devices
  printf 'model_name: gpt  method: megatron  value: %s  time_stamp: %s  \n' "$value" "$at"
fi
"""

GPUS = "#!/bin/sh\n" + "".join(f"echo '{index}, GPU-{index}, V100-SXM2-16GB, 16384'\n" for index in range(8))


def programs(folder: Path) -> str:
    """Return the `programs` of a profile; its checkouts are empty folders in this one."""
    site = {"checkout": f"{folder}/Megatron-LM", "benchmark": f"{folder}/alpa/osdi22_artifact/megatron"}
    for path in site.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    return f"programs: {json.dumps({'megatron-alpa': site})}\n"  # JSON is YAML


def install(folder: Path, gpus: bool = True) -> str:
    """Install the stand-ins of program and GPUs in a folder, and return the folder of their commands."""
    commands = folder / "bin"
    commands.mkdir()
    for name, text in (("python", PROGRAM), *((("nvidia-smi", GPUS),) if gpus else ())):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return str(commands)
