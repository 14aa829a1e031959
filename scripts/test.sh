#!/usr/bin/env bash
# Set up and run all checks: formatter, linter, types, then the tests, the quick ones first.
#
#   bash scripts/test.sh             everything: about 45 minutes on 2 cores
#   bash scripts/test.sh --no-slow   without those marked slow (storm, whole red team, killed and continued runs): 20 minutes
#   bash scripts/test.sh --fast      lint, types and the unmarked tests only: 5 minutes
#   bash scripts/test.sh -- ARGS     set up, then pytest with these arguments
#
# As root on Debian or Ubuntu it installs what the container tests need (docker.io, podman, bubblewrap, openssh-server,
# a C compiler; apt) and
# the tests start engines of their own, below a private folder. Without root those tests are left out, and it says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=all
case ${1:-} in
  --fast) mode=fast ;;
  --no-slow) mode=no-slow ;;
  --) mode=custom; shift ;;
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  '') ;;
  *) echo "test: unknown flag $1 (see --help)" >&2; exit 2 ;;
esac

# Without bytecode every process compiles torch and transformers anew: 15 s of CPU each time instead of 4.
unset PYTHONDONTWRITEBYTECODE
bash scripts/setup.sh --extras cpu,dev
source .venv/bin/activate
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false WANDB_MODE=${WANDB_MODE:-offline}

if [ "$mode" = custom ]; then exec python -m pytest "$@"; fi

step() { printf '\n== %s\n' "$*"; }
need=(bwrap:bubblewrap)
[ "$mode" = fast ] || need+=(dockerd:docker.io cc:build-essential podman:podman runc:runc sshd:openssh-server)
missing=()
for pair in "${need[@]}"; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
without=""
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "installing for the tests (root): ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    step "not installed, and not root: tests that need ${missing[*]} are left out"
  fi
fi
[ "$(id -u)" = 0 ] || without=" and not docker and not podman"

step "format, lint, types"
ruff format --check . && ruff check . && mypy

step "fast tests"
python -m pytest -q -m "not slow and not docker and not podman and not sglang and not ray"
[ "$mode" != fast ] || exit 0

step "SGLang on the CPU (an environment of its own, about 1.6 GB the first time)"
bash scripts/setup_sglang_cpu.sh

step "Ray, engines, containers"
python -m pytest -q -m "(docker or podman or sglang or ray) and (sglang or not slow)$without" --timeout 900
[ "$mode" != no-slow ] || exit 0

step "the slow tests"
python -m pytest -q -m "slow and not sglang$without" --timeout 1800
