#!/usr/bin/env bash
# The whole loop on one machine: set up, build the tasks, train a tiny policy with GRPO on real bugs graded by real tests,
# evaluate before and after on held-out packages, draw the curves. Results: export/quickstart/latest/
#
#   bash scripts/quickstart.sh            about ten minutes: twelve training steps, an evaluation before and one after
#   bash scripts/quickstart.sh --quick    a few minutes: fewer, smaller steps (for CI and the hurried)
#   bash scripts/quickstart.sh [--quick] --any-setting VALUE ...     as in `swe-rl train --help`
#
# Run the same command again after an interruption and it continues. Ctrl-C stops it and leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=()
flags=()
for word in "$@"; do
  case $word in
    --quick) quick=(--num-rollout 3 --rollout-batch-size 4 --n-samples-per-prompt 4 --eval-attempts 48 --save-interval 1) ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) flags+=("$word") ;;
  esac
done

bash scripts/setup.sh
bash data/quickstart/build.sh
export EXPORT_ROOT="${EXPORT_ROOT:-export}/quickstart" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec .venv/bin/swe-rl train --config scripts/quickstart.yaml "${quick[@]}" "${flags[@]}"
