#!/bin/bash
# Build the quickstart's tasks from their recipes: download the packages' sdists through pip (hashes checked), plant the bugs.
# Run again at any time: what is there is kept. Flags: --make (find bugs), --certify (grade them), --help.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-.venv/bin/python}" -m swe_rl.tasks.synth.quickstart "$@"
