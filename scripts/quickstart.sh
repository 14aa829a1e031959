#!/usr/bin/env bash
# The whole loop on one machine: set up, build the tasks, train a tiny policy with GRPO on real bugs graded by real tests,
# evaluate before and after on held-out packages, draw the curves. Results: export/quickstart/latest/
#
#   bash scripts/quickstart.sh            about ten minutes: twelve training steps, an evaluation before and one after
#   bash scripts/quickstart.sh --quick    a few minutes: fewer, smaller steps (for CI and the hurried)
#   bash scripts/quickstart.sh [--quick] --any-setting VALUE ...     as in `swe-rl train --help`
#
# With --hf-checkpoint DIR (or HF_CKPT) on a machine with two or more NVIDIA GPUs, half of them train the model and half serve it
# (SGLang, bfloat16), with the prompts, lengths and learning rate of scripts/quickstart_model.yaml; --num-gpus-per-node and its
# kin, and any other flag, say otherwise. The tiny policy stays on the CPU.
#
# Run the same command again after an interruption and it continues. Ctrl-C stops it and leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=()
flags=()
gpus=()
model=${HF_CKPT:-}
for word in "$@"; do
  case $word in
    --quick) quick=(--num-rollout 3 --rollout-batch-size 4 --n-samples-per-prompt 4 --eval-attempts 48) ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) flags+=("$word") ;;
  esac
  case $word in --hf-checkpoint | --hf-checkpoint=*) model=$word ;; esac
done
if [ -n "$model" ]; then
  n=0
  if command -v nvidia-smi >/dev/null; then n=$(nvidia-smi -L | grep -c '^GPU ') || n=0; fi
  if [ "$n" -ge 2 ]; then
    gpus=(--config scripts/quickstart_model.yaml --engine sglang --dtype bfloat16 --num-gpus-per-node "$n"
      --actor-num-gpus-per-node $((n / 2)) --rollout-num-gpus $((n - n / 2)))
  elif [ "$n" = 1 ]; then
    echo "one GPU: the model is trained and served on the CPU; with two or more, half of them train and half serve" >&2
  fi
fi

bash scripts/setup.sh
bash data/quickstart/build.sh
export EXPORT_ROOT="${EXPORT_ROOT:-export}/quickstart" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec .venv/bin/swe-rl train --config scripts/quickstart.yaml \
  ${quick[@]+"${quick[@]}"} ${gpus[@]+"${gpus[@]}"} ${flags[@]+"${flags[@]}"} # so that bash 3.2 takes empty ones
