"""Settings: where the agent's and the grader's commands run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from swe_rl.config.setting import Area, setting
from swe_rl.errors import ConfigError
from swe_rl.tasks.images import image_from_template


class SandboxSettings(Area):
    area: ClassVar[str] = "sandbox"

    sandbox: Literal["auto", "pool", "docker", "podman", "bubblewrap", "process"] = setting(
        "auto", "auto = pool if a URL is set, else docker, podman, bubblewrap, process: the first that works"
    )
    sandbox_root: str = setting("", "folder for local sandboxes; empty = a private folder below the system's temp")
    sandbox_max_processes: int = setting(
        256, "processes at once in a local sandbox (where the kernel counts them)", ge=8
    )
    sandbox_memory_mb: int = setting(4096, "address space of each process in a local sandbox, in MB", ge=64)
    sandbox_file_mb: int = setting(1024, "largest file that a command may write in a local sandbox, in MB", ge=1)
    swe_env_server_url: str = setting("", "pool server, http://host:18090")
    swe_env_server_port: int = setting(18090, "port of the pool server that a run starts itself", ge=1, le=65535)
    swe_exec_server_urls: list[str] = setting(list, "exec servers of the pool, comma-separated http://host:5000")
    swe_max_containers_per_node: int = setting(15, "containers at once on one exec server", ge=1)
    swe_server_token: str = setting("", "bearer token of exec and pool servers", secret=True)
    swe_docker_registry: str = setting("", "registry prefix put before image names")
    swe_image_template: str = setting(
        "",
        "image of tasks that name none, with {instance_id} {id_1776} {id_s} {repo} {version}; empty = the published rules",
    )

    @field_validator("swe_image_template")
    @classmethod
    def _known_fields(cls, template: str) -> str:
        try:
            image_from_template(template, {"instance_id": "", "repo": "", "version": ""})
        except ConfigError as error:
            raise ConfigError(f"--swe-image-template: {error}") from None
        return template
