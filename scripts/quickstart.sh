#!/usr/bin/env bash
# The whole loop on one machine: set up, build the tasks, train a tiny policy with GRPO on real bugs graded by real tests,
# evaluate before and after on held-out packages, draw the curves. Results: export/quickstart/latest/
#
#   bash scripts/quickstart.sh            about ten minutes: twelve training steps, an evaluation before and one after
#   bash scripts/quickstart.sh --quick    a few minutes: fewer, smaller steps (for CI and the hurried)
#   bash scripts/quickstart.sh [--quick] --any-setting VALUE ...     as in `swe-rl train --help`
#
# With --hf-checkpoint DIR on a machine with two or more NVIDIA GPUs, half of them train the model and half serve it (SGLang,
# bfloat16); --num-gpus-per-node and its kin say otherwise. The tiny policy stays on the CPU.
#
# Run the same command again after an interruption and it continues. Ctrl-C stops it and leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=()
flags=()
gpus=()
for word in "$@"; do
  case $word in
    --quick) quick=(--num-rollout 3 --rollout-batch-size 4 --n-samples-per-prompt 4 --eval-attempts 48 --save-interval 1) ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) flags+=("$word") ;;
  esac
  case $word in
    --hf-checkpoint | --hf-checkpoint=*)
      n=0
      if command -v nvidia-smi >/dev/null; then n=$(nvidia-smi -L | grep -c '^GPU ') || n=0; fi
      if [ "$n" -ge 2 ]; then
        gpus=(--engine sglang --dtype bfloat16 --num-gpus-per-node "$n" --actor-num-gpus-per-node $((n / 2)) --rollout-num-gpus $((n - n / 2)))
      fi ;;
  esac
done

bash scripts/setup.sh
bash data/quickstart/build.sh
export EXPORT_ROOT="${EXPORT_ROOT:-export}/quickstart" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec .venv/bin/swe-rl train --config scripts/quickstart.yaml \
  ${quick[@]+"${quick[@]}"} ${gpus[@]+"${gpus[@]}"} ${flags[@]+"${flags[@]}"} # so that bash 3.2 takes empty ones
