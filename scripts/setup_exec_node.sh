#!/usr/bin/env bash
# Make this machine an exec node: container engine, swe-rl's exec server in a virtual environment of its own, systemd unit.
#
#   setup_exec_node.sh --package FILE [--port 5000] [--prefix /opt/swe-rl] [--token-stdin] [--no-engine] [--no-service]
#
#   --package FILE   wheel or source archive of swe-rl (`swe-rl nodes setup` brings it)
#   --token-stdin    read the bearer token from stdin; else the one in PREFIX/exec-server.env stays
#   --no-engine      do not install Docker; --no-service: do not write or start a systemd unit
#
# Run as root, as often as you like: what is there already stays. Needs Python 3.10 or later with venv.
set -euo pipefail

PACKAGE= PORT=5000 PREFIX=/opt/swe-rl TOKEN_STDIN= ENGINE=1 SERVICE=1
fail() { echo "setup_exec_node.sh: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
        --package) PACKAGE=${2:?--package needs a file}; shift ;;
        --port) PORT=${2:?--port needs a number}; shift ;;
        --port=*) PORT=${1#*=} ;;
        --prefix) PREFIX=${2:?--prefix needs a folder}; shift ;;
        --token-stdin) TOKEN_STDIN=1 ;;
        --no-engine) ENGINE= ;;
        --no-service) SERVICE= ;;
        -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) fail "unknown flag $1 (see --help)" ;;
    esac
    shift
done
[ -f "$PACKAGE" ] || fail "--package: no file '$PACKAGE'"
[[ $PORT =~ ^[0-9]+$ ]] || fail "--port: '$PORT' is no number"

if [ -n "$ENGINE" ] && ! command -v dockerd >/dev/null; then
    [ "$(id -u)" = 0 ] || fail "no Docker Engine, and not root: install it first"
    command -v apt-get >/dev/null || fail "no Docker Engine, and no apt-get: install it by hand, then use --no-engine"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends docker.io >/dev/null
fi

python=$(command -v python3) || fail "no python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "python3 must be 3.10 or later"
mkdir -p "$PREFIX"
[ -x "$PREFIX/venv/bin/python" ] || "$python" -m venv "$PREFIX/venv" || fail "python3 -m venv failed (apt install python3-venv?)"
# The exec server needs a few light libraries; the trainer's heavy ones (torch, ray, transformers) have no business here.
"$PREFIX/venv/bin/python" -m pip install -q "setuptools>=77" wheel "aiohttp>=3.10,<4" "aiodocker>=0.24,<1" "pydantic>=2.9,<3" \
    "prometheus-client>=0.20" "psutil>=5.9" "unidiff>=0.7.5" packaging
"$PREFIX/venv/bin/python" -m pip install -q --no-deps --no-build-isolation --force-reinstall "$PACKAGE"

if [ -n "$TOKEN_STDIN" ]; then
    read -r token || [ -n "$token" ] || fail "--token-stdin: stdin was empty"
    (umask 077 && printf 'SWE_SERVER_TOKEN=%s\n' "$token" >"$PREFIX/exec-server.env")
fi
[ -f "$PREFIX/exec-server.env" ] || (umask 077 && : >"$PREFIX/exec-server.env")
"$PREFIX/venv/bin/swe-rl" exec-server --help >/dev/null || fail "the installed exec server does not start"

if [ -n "$SERVICE" ]; then
    [ -d /run/systemd/system ] || fail "installed, but there is no systemd here: start $PREFIX/venv/bin/swe-rl exec-server yourself"
    cat >/etc/systemd/system/swe-rl-exec-server.service <<UNIT
[Unit]
Description=swe-rl exec server
After=network-online.target docker.service
Wants=network-online.target docker.service

[Service]
EnvironmentFile=$PREFIX/exec-server.env
ExecStart=$PREFIX/venv/bin/swe-rl exec-server --port $PORT --database $PREFIX/exec.sqlite3
Restart=always
RestartSec=1
KillMode=process
TimeoutStopSec=30
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
UNIT
    systemctl daemon-reload
    systemctl enable -q swe-rl-exec-server
    systemctl restart swe-rl-exec-server
    for _ in $(seq 50); do
        curl -fsS -m 2 "http://127.0.0.1:$PORT/healthz" >/dev/null 2>&1 && { echo "exec server runs on port $PORT"; exit 0; }
        sleep 0.2
    done
    fail "the exec server does not answer on port $PORT: journalctl -u swe-rl-exec-server"
fi
echo "installed in $PREFIX; start it with $PREFIX/venv/bin/swe-rl exec-server --port $PORT"
