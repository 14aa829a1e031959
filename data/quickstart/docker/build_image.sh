#!/bin/bash
# The quickstart's image (bash, git, python3, pytest): by Dockerfile where a registry can be reached, else from this
# machine's own files.   build_image.sh [TAG] [--local]
set -euo pipefail
cd "$(dirname "$0")"
TAG=swe-rl/quickstart:local LOCAL=
for arg in "$@"; do
    case $arg in
        --local) LOCAL=1 ;;
        -h | --help) sed -n '2,3p' "$0"; exit ;;
        *) TAG=$arg ;;
    esac
done
if [ -z "$LOCAL" ] && timeout 300 docker build -q -t "$TAG" . ; then exit 0; fi
exec "${PYTHON:-python3}" -m swe_rl.sandbox.container.local_image --tag "$TAG"
