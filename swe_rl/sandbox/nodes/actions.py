"""What is done on one node: each action takes a connected host and returns one line for people."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from swe_rl.errors import InfraError
from swe_rl.sandbox.nodes.ssh import Host, SshError

LABEL = "swe-rl.managed"
IMAGE_NAME = re.compile(r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,500}$")
SETUP_SECONDS, STATUS_SECONDS, CLEAN_SECONDS, PULL_SECONDS = 1200.0, 30.0, 300.0, 1800.0
MAX_STATUS = 16_000_000  # bytes; it lists every image of the node


def setup(host: Host, *, script: Path, package: Path, token: str, flags: list[str]) -> str:
    """Install engine and exec server by `setup_exec_node.sh`; the token goes through stdin, never in an argument."""
    folder = _checked(
        host, "mktemp -d /tmp/swe-rl-setup.XXXXXXXX", 30.0
    ).strip()  # nobody else's, whatever lies in /tmp
    try:
        host.put(script.read_bytes(), f"{folder}/{script.name}", mode=0o755)
        host.put(package.read_bytes(), f"{folder}/{package.name}", mode=0o644)
        words = ["bash", f"{folder}/{script.name}", "--package", f"{folder}/{package.name}", *flags]
        command = f"IFS= read -r SWE_SERVER_TOKEN && export SWE_SERVER_TOKEN && {shlex.join(words)}"
        output = _checked(host, command, SETUP_SECONDS, stdin=f"{token}\n".encode())
    finally:
        host.run(f"rm -rf {shlex.quote(folder)}", timeout=60.0)
    return output.strip().splitlines()[-1] if output.strip() else "done"


def status(host: Host, *, port: int, token: str) -> str:
    """Engine, server, containers and disk, as the node's own exec server tells. Raises InfraError where one is down."""
    engine = host.run("docker info --format '{{.ServerVersion}} {{.ContainersRunning}}'", timeout=STATUS_SECONDS)
    engine_says = engine.output.split() if engine.returncode == 0 else []
    answer = host.run(
        "curl -fsS -m 10 -K -", timeout=STATUS_SECONDS, stdin=curl_config(port, "/status", token), most=MAX_STATUS
    )
    parts = [f"engine {engine_says[0]}" if engine_says else "engine DOWN"]
    up = False
    if answer.returncode == 0:
        try:
            state = json.loads(answer.output)
            more = [f"disk {state['disk_fraction']:.0%} full"] if "disk_fraction" in state else []
            parts += [f"exec server up, {len(state.get('containers') or [])} containers", *more]
            up = True
        except (ValueError, TypeError, AttributeError):
            parts.append(f"port {port} answers, but not as an exec server does ({answer.output.strip()[:120]!r})")
    else:
        parts.append(f"exec server DOWN ({answer.output.strip()[-120:]})")
    if not (engine_says and up):
        raise InfraError(f"{host.address}: {'; '.join(parts)}")
    return "; ".join(parts)


def clean(host: Host, *, remove: bool) -> str:
    """List containers that carry our label, and with `remove` force them away. Others are never touched."""
    listed = _checked(
        host,
        f"docker ps -a --filter label={LABEL} --format '{{{{.ID}}}} {{{{.Names}}}} {{{{.Status}}}}'",
        STATUS_SECONDS,
    )
    lines = listed.strip().splitlines()
    if not lines or not remove:
        return f"{len(lines)} labelled containers" + "".join(f"\n    {line}" for line in lines)
    ids = [line.split()[0] for line in lines]
    _checked(host, shlex.join(["docker", "rm", "-f", "-v", *ids]), CLEAN_SECONDS)
    return f"{len(ids)} labelled containers removed"


def pull(host: Host, image: str, *, port: int, token: str) -> str:
    """Make sure that the node holds `image`, through its exec server: with its mirrors and credentials, and known to it.

    Returns "", or why it was done by docker alone, so that the server does not know the image. Raises SshError.
    """
    if not IMAGE_NAME.match(image):
        raise SshError(f"{image!r} is no image name")
    wanted = json.dumps({"image": image, "stream": True, "timeout": PULL_SECONDS})
    request = curl_config(port, "/image/pull", token, wanted)
    curl = f"curl -sS -N -m {PULL_SECONDS + 30:.0f} -K - | tail -n 1"  # the last line of the stream; errors beside it
    lines = host.run(curl, timeout=PULL_SECONDS + 60, stdin=request).output.strip().splitlines() or ["no answer"]
    told = next((line for line in lines if line.startswith("{")), "{}")
    try:
        answer = dict(json.loads(told))
        state, why = answer.get("state"), answer.get("error", {}).get("message") or lines[-1]
    except (ValueError, TypeError, AttributeError):
        state, why = None, told
    if state == "done":
        return ""
    if state == "failed":
        raise SshError(f"{host.address}: {answer.get('note')}")
    if state == "pulling":
        raise SshError(f"{host.address}: the pull is not over after {answer.get('seconds')} s; run this again")
    quoted = shlex.quote(image)
    if host.run(f"docker image inspect --format ok {quoted}", timeout=STATUS_SECONDS).returncode != 0:
        _checked(host, f"docker pull -q {quoted}", PULL_SECONDS)
    return f"port {port}: {str(why)[:300]}"


def curl_config(port: int, path: str, token: str, data: str = "") -> bytes:
    """What curl reads from stdin, so that the token is on no command line."""
    options = {"url": f"http://127.0.0.1:{port}{path}", "header": f"Authorization: Bearer {token}"}
    if data:
        options["data"] = data
    quoted = {name: value.replace("\\", r"\\").replace('"', r"\"") for name, value in options.items()}
    return "".join(f'{name} = "{value}"\n' for name, value in quoted.items()).encode()


def _checked(host: Host, command: str, timeout: float, stdin: bytes = b"") -> str:
    end = host.run(command, timeout=timeout, stdin=stdin)
    if end.returncode != 0:
        raise SshError(f"{host.address}: exit code {end.returncode}: {end.output.strip()[-800:]}")
    return end.output
