"""`swe-rl nodes`: the same action on many hosts at once, bounded, with a summary and an honest exit code."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from swe_rl.errors import InfraError, UsageError
from swe_rl.sandbox.container.pull_dataset import listed_images
from swe_rl.sandbox.nodes import actions
from swe_rl.sandbox.nodes.ssh import Host, Login, read_hosts
from swe_rl.tasks.images import with_registry
from swe_rl.tasks.load import load_tasks

CHECKOUT = Path(__file__).resolve().parents[3]
EPILOG = """examples:
  swe-rl nodes setup  --hosts node1,node2 --ssh-user root --ssh-key ~/.ssh/id_ed25519
  swe-rl nodes status --hosts hosts.txt
  swe-rl nodes pull   --hosts hosts.txt --tasks swegym.jsonl --registry reg.local:5000
  swe-rl nodes clean  --hosts hosts.txt --yes
Host keys must be in known_hosts already: an unknown machine is refused. The bearer token comes from SWE_SERVER_TOKEN."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "swe-rl nodes",
        description="Set up, watch, fill and clean exec nodes over ssh.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=["setup", "status", "clean", "pull"])
    add = parser.add_argument
    add("--hosts", required=True, help="host[:port],... or a file with one a line")
    add("--ssh-user", default=os.environ.get("CES_SSH_USER", "root"), help="CES_SSH_USER [root]")
    add(
        "--ssh-key",
        default=os.environ.get("CES_SSH_KEY", ""),
        metavar="FILE",
        help="CES_SSH_KEY; default: agent or ~/.ssh",
    )
    add("--known-hosts", default="", metavar="FILE", help="in place of ~/.ssh/known_hosts")
    add("--parallel", type=int, default=8, metavar="N", help="hosts at a time [8]")
    add("--port", type=int, default=5000, help="port of the exec servers [5000]")
    setup = parser.add_argument_group("setup")
    setup.add_argument(
        "--package", default="", metavar="FILE", help="wheel or source archive of swe-rl; default: this checkout"
    )
    setup.add_argument("--setup-flags", default="", metavar="TEXT", help="further flags for scripts/setup_exec_node.sh")
    clean = parser.add_argument_group("clean")
    clean.add_argument("--yes", action="store_true", help="remove; without it the leftovers are only listed")
    pull = parser.add_argument_group("pull")
    pull.add_argument("--tasks", default="", metavar="FILE", help="dataset whose images are pulled")
    pull.add_argument("--images", default="", metavar="FILE", help="image names, one a line")
    pull.add_argument("--registry", default=os.environ.get("SWE_DOCKER_REGISTRY", ""), help="prefix of the image names")
    template = os.environ.get("SWE_IMAGE_TEMPLATE", "")
    pull.add_argument("--image-template", default=template, help="image of tasks that name none (SWE_IMAGE_TEMPLATE)")
    pull.add_argument("--pulls-per-host", type=int, default=2, metavar="N", help="pulls at a time on one host [2]")
    return parser


def main(argv: list[str]) -> int:
    """Exit code 1 where any host failed."""
    flags = make_parser().parse_args(argv)
    if flags.parallel < 1 or flags.pulls_per_host < 1:
        raise UsageError("--parallel and --pulls-per-host must be at least 1")
    hosts = read_hosts(flags.hosts)
    login = Login(flags.ssh_user, str(Path(flags.ssh_key).expanduser()) if flags.ssh_key else "", flags.known_hosts)
    token = os.environ.get("SWE_SERVER_TOKEN", "")
    if flags.action == "pull":
        images = wanted_images(flags)
        one = functools.partial(actions.pull, port=flags.port, token=token)
        return _pull(hosts, login, images, one, flags.parallel, flags.pulls_per_host)
    if flags.action == "setup":
        if not token:
            raise UsageError("setup: exec servers for other machines need a token; set SWE_SERVER_TOKEN")
        script = CHECKOUT / "scripts" / "setup_exec_node.sh"
        if not script.is_file():
            raise UsageError(f"setup needs the checkout's {script}")
        more = ["--port", str(flags.port), *shlex.split(flags.setup_flags)]
        with tempfile.TemporaryDirectory(prefix="swe-rl-package-") as folder:
            package = Path(flags.package) if flags.package else build_package(Path(folder))
            return _on_each(
                hosts,
                login,
                flags.parallel,
                lambda host: actions.setup(host, script=script, package=package, token=token, flags=more),
            )
    if flags.action == "status":
        return _on_each(hosts, login, flags.parallel, lambda host: actions.status(host, port=flags.port, token=token))
    return _on_each(hosts, login, flags.parallel, lambda host: actions.clean(host, remove=flags.yes))


def _on_each(hosts: list[str], login: Login, parallel: int, action: Callable[[Host], str]) -> int:
    """Run `action` on every host; a line each, as they end."""

    def one(address: str) -> str:
        with Host(address, login) as host:
            return action(host)

    failed = 0
    with ThreadPoolExecutor(min(parallel, len(hosts))) as threads:
        running = {threads.submit(one, address): address for address in hosts}
        for done in as_completed(running):
            try:
                print(f"{running[done]}: {done.result()}", flush=True)
            except InfraError as error:
                failed += 1
                print(f"FAILED {error}", file=sys.stderr, flush=True)
    if failed:
        print(f"{failed} of {len(hosts)} hosts failed", file=sys.stderr)
    return 1 if failed else 0


def _pull(
    hosts: list[str], login: Login, images: list[str], pull: Callable[[Host, str], str], parallel: int, per_host: int
) -> int:
    """Pull every image on every host with one bar a host."""
    failures: list[str] = []
    alone: dict[str, str] = {}  # hosts without an exec server that answers, and why
    with Progress(console=Console(stderr=True)) as progress:
        bars = {address: progress.add_task(address, total=len(images)) for address in hosts}

        def one_host(address: str) -> None:
            def one_image(image: str) -> None:
                try:
                    if why := pull(host, image):
                        alone[address] = why
                except InfraError as error:
                    failures.append(f"{image}: {error}")
                progress.advance(bars[address])

            with Host(address, login) as host, ThreadPoolExecutor(per_host) as pulls:
                list(pulls.map(one_image, images))

        with ThreadPoolExecutor(min(parallel, len(hosts))) as threads:
            running = {threads.submit(one_host, address): address for address in hosts}
            for done in as_completed(running):
                error = done.exception()
                if isinstance(error, InfraError):
                    failures.append(str(error))
                elif error is not None:
                    raise error
    for address, why in alone.items():
        past = "pulled by docker, not by its exec server, which would have mirrors, credentials and know what to evict"
        print(f"{address}: {past} ({why})", file=sys.stderr)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    print(f"{len(images)} images on {len(hosts)} hosts, {len(failures)} failures")
    return 1 if failures else 0


def wanted_images(flags: argparse.Namespace) -> list[str]:
    """Image names of --images and --tasks, below the registry prefix, without doubles. Raises UsageError."""
    names = listed_images(flags.images) if flags.images else []
    if flags.tasks:
        names += [task.image for task in load_tasks(flags.tasks, image_template=flags.image_template).tasks]
    images = list(dict.fromkeys(with_registry(name, flags.registry) for name in names if name))
    if not images:
        raise UsageError("pull: nothing to pull; give --images FILE or --tasks FILE")
    return images


def build_package(folder: Path) -> Path:
    """An archive in `folder` of this checkout's sources, for pip. Raises UsageError where this is no checkout."""
    if not (CHECKOUT / "pyproject.toml").is_file():
        raise UsageError("setup: this installation is no checkout; give a wheel or source archive with --package")
    path = folder / "swe-rl.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("pyproject.toml", "README.md", "swe_rl"):
            if (CHECKOUT / name).exists():
                archive.add(CHECKOUT / name, f"swe-rl/{name}", filter=_without_caches)
    return path


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name else member
