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

[ -f "$work/new/config.json" ] || .venv/bin/python -m swe_rl.policy.make ${sdists[@]+"${sdists[@]}"} --out "$work/new" --seed 1
demos() { # FILE SEED PRACTICE DRILLS
    [ -f "$work/$1" ] ||
        .venv/bin/swe-rl data demos --tokenizer "$work/new" --practice "$3" --drills "$4" ${sdists[@]+"${sdists[@]}"} --out "$work/$1" --seed "$2"
}

# First the form and the copying, at a high rate; then fresh demonstrations while the rate falls to a tenth.
demos first.jsonl 2 14000 2000
.venv/bin/swe-rl sft --hf-checkpoint "$work/new" --data "$work/first.jsonl" --out "$work/first" \
    --copy-steps 160 --copy-rows 8 --batch-tokens 2560 --lr 6e-4 --min-lr 3e-4 --warmup 30 --context-weight 0 --max-steps 1100
demos second.jsonl 12 20000 1500
.venv/bin/swe-rl sft --hf-checkpoint "$work/first" --data "$work/second.jsonl" --out "$work/warm" \
    --copy-rows 4 --batch-tokens 2560 --lr 5e-4 --min-lr 5e-5 --warmup 20 --context-weight 0 --max-steps 1300
mkdir -p "$out"
for file in model.safetensors config.json generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja; do
    cp "$work/warm/$file" "$out/$file"
done
chmod 644 "$out"/*
echo "warm policy in $out"
