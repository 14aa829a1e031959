#!/bin/bash
# The quickstart's image (bash, git, python3, pytest): by Dockerfile where a registry can be reached, else from this
# machine's own files. Runs build it by themselves where it is missing; this is for building it before, or anew.
#
#   build_image.sh [TAG] [--local]      TAG: default swe-rl/quickstart:local; --local: from this machine's files at once
#   DOCKER_HOST names the engine (default unix:///var/run/docker.sock)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$root"
TAG=swe-rl/quickstart:local LOCAL=
for arg in "$@"; do
    case $arg in
        --local) LOCAL=1 ;;
        -h | --help) sed -n '2,6s/^# \{0,1\}//p' data/quickstart/docker/build_image.sh; exit ;;
        -*) echo "build_image.sh: unknown flag $arg (see --help)" >&2; exit 2 ;;
        *) TAG=$arg ;;
    esac
done
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3

if [ -z "$LOCAL" ]; then
    # An engine without a bridge network can still build: the build then uses the machine's own.
    network=()
    docker network inspect bridge >/dev/null 2>&1 || network=(--network host)
    if timeout 600 docker build ${network[@]+"${network[@]}"} -t "$TAG" data/quickstart/docker >&2; then
        echo "$TAG"
        exit 0
    fi
    echo "build_image.sh: the Dockerfile cannot be built here (see above): building from this machine's own files" >&2
fi
exec "$python" -m swe_rl.sandbox.container.local_image --tag "$TAG"
