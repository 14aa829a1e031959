#!/usr/bin/env bash
# Set up and run all checks: formatter, linter, types, then the tests, the quick ones first.
#
#   bash scripts/test.sh             everything: about 45 minutes on 2 cores
#   bash scripts/test.sh --no-slow   without those marked slow (storm, whole red team, killed and continued runs): 20 minutes
#   bash scripts/test.sh --fast      lint, types and the unmarked tests only: 5 minutes
#   bash scripts/test.sh -- ARGS     set up, then pytest with these arguments
#
# As root on Debian or Ubuntu it installs what the container tests need (docker.io, podman, bubblewrap, openssh-server,
# a C compiler) with apt, and the tests start engines of their own, below a private folder. Without root or those tools
# their tests are left out, and it says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=all
case ${1:-} in
  --fast) mode=fast ;;
  --no-slow) mode=no-slow ;;
  --) mode=custom; shift ;;
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
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
absent() { ! PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null; }
missing=()
for pair in "${need[@]}"; do
  if absent "${pair%%:*}"; then missing+=("${pair##*:}"); fi
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "installing for the tests (root): ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    step "not installed, for want of root or apt-get: ${missing[*]}; tests that look for them skip"
  fi
fi
without=""
leave_out() { # MARKER REASON
  without="$without and not $1"
  step "the $1 tests are left out: $2"
}
for marker in docker podman; do
  [ "$mode" != fast ] || break
  tools=(dockerd cc) # the tests of Podman look at it with docker's command
  if [ "$marker" = podman ]; then tools=(podman runc docker cc); fi
  lacking=()
  for tool in "${tools[@]}"; do
    if absent "$tool"; then lacking+=("$tool"); fi
  done
  if [ "$(id -u)" != 0 ]; then
    leave_out "$marker" "starting a container engine needs root"
  elif [ ${#lacking[@]} -gt 0 ]; then
    leave_out "$marker" "no ${lacking[*]} here"
  fi
done

step "format, lint, types"
ruff format --check . && ruff check . && mypy

step "fast tests"
python -m pytest -q -m "not slow and not docker and not podman and not sglang and not ray"
[ "$mode" != fast ] || exit 0

step "SGLang on the CPU (an environment of its own, about 1.6 GB the first time)"
code=0
bash scripts/setup_sglang_cpu.sh || code=$?
case $code in
  0) ;;
  3) leave_out sglang "it needs Python 3.11 or newer" ;;
  *) exit "$code" ;;
esac

step "Ray, engines, containers"
python -m pytest -q -m "(docker or podman or sglang or ray) and (sglang or not slow)$without" --timeout 900
[ "$mode" != no-slow ] || exit 0

step "the slow tests"
python -m pytest -q -m "slow and not sglang$without" --timeout 1800
