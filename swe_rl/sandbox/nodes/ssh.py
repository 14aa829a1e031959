"""Commands and files over ssh with host keys checked: a machine whose key is not known is refused, never trusted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from swe_rl.errors import InfraError, UsageError

CONNECT_SECONDS = 15.0
PUT_SECONDS = 120.0  # without a sign of life while a file is written
MAX_OUTPUT = 1_000_000  # bytes kept of a remote command's output


class SshError(InfraError):
    """A host cannot be reached or refused; the message names the host and the remedy."""


@dataclass(frozen=True)
class Login:
    """How to get in. `known_hosts` empty = the user's own file."""

    user: str
    key: str = ""
    known_hosts: str = ""


@dataclass(frozen=True)
class Remote:
    """The end of a remote command; stdout and stderr together."""

    returncode: int
    output: str


class Host:
    """One connection. Use as a context manager."""

    def __init__(self, address: str, login: Login) -> None:
        self.address = address
        self._login = login

    def __enter__(self) -> Host:
        try:
            import paramiko
        except ImportError as error:
            raise UsageError("swe-rl nodes needs paramiko: pip install 'swe-rl[nodes]'") from error
        name, port = split_port(self.address)
        self._client = paramiko.SSHClient()
        self._client.set_missing_host_key_policy(paramiko.RejectPolicy())
        try:
            if self._login.known_hosts:
                self._client.load_host_keys(self._login.known_hosts)
            else:
                self._client.load_system_host_keys()
            self._client.connect(
                name,
                port=port,
                username=self._login.user,
                key_filename=self._login.key or None,
                timeout=CONNECT_SECONDS,
                banner_timeout=CONNECT_SECONDS,
                auth_timeout=CONNECT_SECONDS,
            )
        except paramiko.BadHostKeyException as error:
            raise SshError(f"{self.address}: its host key has changed; find out why before you trust it") from error
        except paramiko.AuthenticationException as error:
            raise SshError(
                f"{self.address}: login as {self._login.user} refused; check --ssh-user, --ssh-key"
            ) from error
        except paramiko.SSHException as error:
            hint = (
                "" if "known_hosts" not in str(error) else f"; check its key, then: ssh-keyscan {name} >> known_hosts"
            )
            raise SshError(f"{self.address}: {error}{hint}") from error
        except OSError as error:
            raise SshError(f"{self.address}: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def run(self, command: str, *, timeout: float, stdin: bytes = b"", most: int = MAX_OUTPUT) -> Remote:
        """Run a shell command and keep `most` bytes of its output. Secrets travel in `stdin`, never in `command`.

        Raises SshError after `timeout` seconds.
        """
        transport = self._client.get_transport()
        assert transport is not None
        try:
            channel = transport.open_session(timeout=CONNECT_SECONDS)
            channel.set_combine_stderr(True)
            channel.exec_command(command)
            channel.settimeout(timeout)
            channel.sendall(stdin)
            channel.shutdown_write()
            return _collect(channel, self.address, timeout, most)
        except Exception as error:
            if isinstance(error, SshError):
                raise
            raise SshError(f"{self.address}: {error or type(error).__name__}") from error

    def put(self, data: bytes, path: str, *, mode: int) -> None:
        """Write a file over sftp. Raises SshError."""
        try:
            with self._client.open_sftp() as sftp, sftp.open(path, "wb") as file:
                file.settimeout(PUT_SECONDS)
                file.chmod(mode)
                file.write(data)
        except Exception as error:
            raise SshError(f"{self.address}: {path}: {error}") from error


def _collect(channel: object, address: str, timeout: float, most: int) -> Remote:
    from paramiko import Channel

    assert isinstance(channel, Channel)
    ends = time.monotonic() + timeout
    kept = bytearray()
    while True:
        try:
            data = channel.recv(65536)
        except TimeoutError as error:
            raise SshError(f"{address}: no end of the command within {timeout:.0f} s") from error
        if not data:
            break
        kept += data[: max(0, most - len(kept))]
        if time.monotonic() > ends:
            channel.close()
            raise SshError(f"{address}: no end of the command within {timeout:.0f} s")
    ended = channel.status_event.wait(max(0.0, ends - time.monotonic()))  # it may go on with its output closed
    status = channel.recv_exit_status() if ended else 0
    channel.close()
    if not ended:
        raise SshError(f"{address}: no end of the command within {timeout:.0f} s")
    return Remote(status, kept.decode(errors="replace"))


def split_port(address: str) -> tuple[str, int]:
    """`host`, `host:port` or `[v6]:port`."""
    name, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or (":" in name and not name.startswith("[")):
        return address.strip("[]"), 22
    return name.strip("[]"), int(port)


def read_hosts(text: str) -> list[str]:
    """Addresses from `a,b,c` or from a file, one a line, # comments. Raises UsageError."""
    path = Path(text)
    if path.is_file():
        lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        lines = [part.strip() for part in text.split(",")]
    hosts = list(dict.fromkeys(line for line in lines if line))
    if not hosts:
        raise UsageError("--hosts: name at least one host, or a file with one a line")
    return hosts
