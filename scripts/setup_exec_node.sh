#!/bin/bash
# Make a bare Debian or Ubuntu machine an exec node: container engine, this package in a venv of its own, and the exec
# server as a systemd unit. Idempotent: run it again to upgrade or to change a flag.
#
#   sudo SWE_SERVER_TOKEN=... scripts/setup_exec_node.sh [--package SPEC] [--port N] [--prefix DIR] [--no-service] [--dry-run]
#                                                        [-- FLAGS of swe-rl exec-server]
#   --package     what pip installs: a wheel, a checkout or a requirement (default: the checkout this script lies in)
#   --no-service  for machines that are not run by systemd: install everything below the prefix, and leave starting
#                 PREFIX/exec-server.sh (and the engine) to you
#   --dry-run     print the commands and files, change nothing
# The token is kept in /etc/swe-rl/exec-server.env (--no-service: PREFIX/exec-server.env), mode 0600. Where the variable is
# not set, the token that is there stays; set and empty takes it away. Without one the server listens on loopback only.
set -euo pipefail

PREFIX=/opt/swe-rl PORT=5000 DRY= SERVICE=1 FLAGS=()
PACKAGE=$(cd "$(dirname "$0")/.." && pwd)
while [ $# -gt 0 ]; do
    case $1 in
        --package) PACKAGE=${2:?--package needs a value}; shift 2 ;;
        --port) PORT=${2:?--port needs a value}; shift 2 ;;
        --prefix) PREFIX=${2:?--prefix needs a value}; shift 2 ;;
        --no-service) SERVICE=; shift ;;
        --dry-run) DRY=1; shift ;;
        --) shift; FLAGS=("$@"); break ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit ;;
        *) echo "setup_exec_node.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
    esac
done
[[ $PORT =~ ^[0-9]+$ ]] || { echo "setup_exec_node.sh: --port $PORT is not a number" >&2; exit 2; }
# Neither a unit nor a shell may read something else in them.
[[ $PREFIX == /* && $PREFIX != *[\"\\\$%[:cntrl:]]* ]] ||
    { echo "setup_exec_node.sh: --prefix $PREFIX is not an absolute path without \", \\, \$, % and line ends" >&2; exit 2; }
[[ ${SWE_SERVER_TOKEN:-} != [\"\']* && ${SWE_SERVER_TOKEN:-} != *[\\[:cntrl:]]* ]] ||
    { echo "setup_exec_node.sh: SWE_SERVER_TOKEN must not begin with a quote nor hold a backslash or a line end" >&2; exit 2; }
[[ ${FLAGS[*]} != *[[:cntrl:]]* ]] || { echo "setup_exec_node.sh: a flag after -- holds a line end" >&2; exit 2; }
fail() { echo "setup_exec_node.sh: $*" >&2; exit 1; }
[ -n "$DRY" ] || [ "$(id -u)" = 0 ] || fail "run it as root (or with --dry-run)"
# Said before anything is changed, not after five minutes of installing.
[ -n "$DRY" ] || [ -z "$SERVICE" ] || [ -d /run/systemd/system ] ||
    fail "this machine is not run by systemd: with --no-service everything is installed, and starting it is yours"

run() {
    if [ -n "$DRY" ]; then printf '+ %s\n' "${*@Q}"; else "$@"; fi
}

write() { # write FILE MODE: stdin becomes the file, atomically; its text is not printed where the mode hides it
    if [ -n "$DRY" ]; then
        echo "+ write $1 (mode $2)"
        if [ "$2" = 0600 ]; then cat >/dev/null; else sed 's/^/    /'; fi
    else
        mkdir -p "$(dirname "$1")"
        install -m "$2" /dev/stdin "$1.new"
        mv "$1.new" "$1"
    fi
}

missing=()
command -v dockerd >/dev/null || missing+=(docker.io)
command -v python3 >/dev/null || missing+=(python3)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
# The supervisor of containers is compiled on the node; without a compiler a slower script serves.
command -v cc >/dev/null || missing+=(gcc libc6-dev)
if [ ${#missing[@]} -gt 0 ]; then
    run apt-get -q -o DPkg::Lock::Timeout=300 update
    run env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
fi

[ -x "$PREFIX/venv/bin/python" ] || run python3 -m venv "$PREFIX/venv"
# Only what the exec server imports: the trainer's libraries (ray, transformers; 1 GB and more) have no business on a node.
run "$PREFIX/venv/bin/python" -m pip install --quiet "aiohttp>=3.10,<4" "aiodocker>=0.24,<1" "pydantic>=2.9,<3" "pyyaml>=6" \
    "prometheus-client>=0.20" "psutil>=5.9" "rich>=13.7" packaging
run "$PREFIX/venv/bin/python" -m pip install --quiet --no-deps --force-reinstall "$PACKAGE"

ENV_FILE=/etc/swe-rl/exec-server.env
[ -n "$SERVICE" ] || ENV_FILE=$PREFIX/exec-server.env
if [ -n "${SWE_SERVER_TOKEN+set}" ] || [ ! -e "$ENV_FILE" ]; then
    printf 'SWE_SERVER_TOKEN=%s\n' "${SWE_SERVER_TOKEN:-}" | write "$ENV_FILE" 0600
fi

if [ -z "$SERVICE" ]; then
    write "$PREFIX/exec-server.sh" 0755 <<START
#!/bin/bash
# Starts the exec server in the foreground; SIGTERM ends it, containers stay.
set -euo pipefail
SWE_SERVER_TOKEN=\$(sed -n 's/^SWE_SERVER_TOKEN=//p' $(printf %q "$ENV_FILE"))
export SWE_SERVER_TOKEN XDG_CACHE_HOME=$(printf %q "$PREFIX/cache")
exec $(printf %q "$PREFIX")/venv/bin/swe-rl exec-server --port $PORT --database $(printf %q "$PREFIX")/exec.sqlite3 ${FLAGS[*]@Q} "\$@"
START
    [ -n "$DRY" ] || echo "installed; start the engine, then $PREFIX/exec-server.sh"
    exit 0
fi

FLAGS=("${FLAGS[@]//\\/\\\\}") # as systemd reads words: \ " % $ stand for more than themselves
FLAGS=("${FLAGS[@]//\"/\\\"}")
FLAGS=("${FLAGS[@]//%/%%}")
FLAGS=("${FLAGS[@]//\$/\$\$}")
WORDS=
[ ${#FLAGS[@]} = 0 ] || WORDS=$(printf ' "%s"' "${FLAGS[@]}")

write /etc/systemd/system/swe-rl-exec-server.service 0644 <<UNIT
[Unit]
Description=swe-rl exec server
Requires=docker.service
After=docker.service network-online.target
Wants=network-online.target

[Service]
EnvironmentFile=$ENV_FILE
Environment=XDG_CACHE_HOME=/var/lib/swe-rl/cache
ExecStart="$PREFIX/venv/bin/swe-rl" exec-server --port $PORT --database /var/lib/swe-rl/exec.sqlite3$WORDS
StateDirectory=swe-rl
Restart=always
RestartSec=2
TimeoutStopSec=30
LimitNOFILE=65536
# Containers outlive the server: leases go on after a restart.
KillMode=mixed
NoNewPrivileges=yes
ProtectSystem=full
ProtectHome=read-only

[Install]
WantedBy=multi-user.target
UNIT
run systemctl daemon-reload
run systemctl enable --now docker.service
run systemctl enable swe-rl-exec-server.service
run systemctl restart swe-rl-exec-server.service

[ -z "$DRY" ] || exit 0
for _ in $(seq 60); do
    if python3 -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$PORT/healthz', timeout=2)" 2>/dev/null; then
        echo "exec server answers on port $PORT"
        exit 0
    fi
    sleep 1
done
fail "the server does not answer; see: journalctl -u swe-rl-exec-server"
