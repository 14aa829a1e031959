#!/bin/bash
# Make the warm policy of the quickstart again, from nothing but the sdists of permissively licensed packages (an hour or so).
#   bash scripts/make_quickstart_policy.sh [FOLDER]      default data/quickstart/policy; intermediate files in FOLDER.work
# Held-out packages (see data/quickstart/packages.json) are in neither the tokenizer's nor the policy's training data.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
out="${1:-data/quickstart/policy}"
work="$out.work"
mkdir -p "$work"

sdists=()
while read -r file; do sdists+=(--sdist "$file"); done < <(.venv/bin/python -m swe_rl.policy.sources --cache "$work/sdists")

[ -f "$work/new/config.json" ] || .venv/bin/python -m swe_rl.policy.make "${sdists[@]}" --out "$work/new" --seed 1
[ -f "$work/demos.jsonl" ] ||
    .venv/bin/swe-rl data demos --tokenizer "$work/new" --practice 14000 --drills 2000 "${sdists[@]}" --out "$work/demos.jsonl" --seed 2
.venv/bin/swe-rl sft --hf-checkpoint "$work/new" --data "$work/demos.jsonl" --out "$work/warm" \
    --copy-steps 160 --copy-rows 8 --batch-tokens 2560 --lr 6e-4 --min-lr 3e-4 --warmup 30 --context-weight 0 --max-steps 1100
mkdir -p "$out"
for file in model.safetensors config.json generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja; do
    cp "$work/warm/$file" "$out/$file"
done
chmod 644 "$out"/*
echo "warm policy in $out"
