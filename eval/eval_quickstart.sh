#!/usr/bin/env bash
# Resolve rate of a policy on the quickstart's held-out tasks, with the settings of the quickstart.
#
#   bash eval/eval_quickstart.sh [DIR] [--any-setting VALUE ...]     DIR: a Hugging Face folder
#                                                                    (default: the newest quickstart's export)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac

policy=${EXPORT_ROOT:-export}/quickstart/latest/hf
if [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; then policy=$1; shift; fi
bash scripts/setup.sh
bash data/quickstart/build.sh
export EXPORT_ROOT="${EXPORT_ROOT:-export}/eval" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec .venv/bin/swe-rl eval --config scripts/quickstart.yaml --hf-checkpoint "$policy" "$@"
