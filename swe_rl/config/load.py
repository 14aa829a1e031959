"""Build the one config from its sources: YAML file < environment < flags; every value remembers where it came from."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError

from swe_rl.config import AREAS, Config
from swe_rl.config.describe import allowed, flag, is_bool, is_list, variables
from swe_rl.errors import ConfigError

DEFAULT = "default"
DEBUG_ROLLOUTS = 40  # rollout steps of a run in `debug_mode` that names no number


@dataclass(frozen=True)
class Loaded:
    """A resolved config, the source of each setting ("default", "FILE", "environment X", "flag --x"), `--dry-run`."""

    config: Config
    sources: dict[str, str]
    dry_run: bool = False


def load_config(
    argv: list[str],
    *,
    prog: str = "swe-rl train",
    description: str = "",
    environ: Mapping[str, str] | None = None,
    preset: Path | None = None,
) -> Loaded:
    """Resolve settings from `preset` (YAML, weakest), `--config` files, the environment and flags.

    Raises ConfigError naming every wrong setting with its value, what is allowed and where the value came from.
    """
    parser = make_parser(prog, description)
    flags = _parse_flags(parser, argv)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    files = ([preset] if preset else []) + [Path(p) for p in flags.pop("config", None) or []]
    dry_run = bool(flags.pop("dry_run", False))
    for path in files:
        for name, value in read_yaml(path).items():
            values[name], sources[name] = value, str(path)
    for name, value, source in _from_environment(os.environ if environ is None else environ):
        values[name], sources[name] = value, source
    for name, value in flags.items():
        values[name], sources[name] = value, f"flag {flag(name)}"
    config = validate(values, sources)
    if config.debug_mode and "num_rollout" not in sources:
        values["num_rollout"], sources["num_rollout"] = DEBUG_ROLLOUTS, sources["debug_mode"]
        config = validate(values, sources)
    return Loaded(config, sources, dry_run)


def validate(values: dict[str, Any], sources: dict[str, str]) -> Config:
    """Check every value; one ConfigError lists all that are wrong, a line each."""
    for name, value in values.items():
        if isinstance(value, str) and name in Config.model_fields and is_list(name):
            values[name] = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            name = str(item["loc"][0]) if item["loc"] else ""
            if not name:  # a check over several settings
                lines.append(str(item["ctx"]["error"]) if "ctx" in item else item["msg"])
                continue
            source = sources.get(name, DEFAULT)
            shown = "***" if _secret(name) else repr(values.get(name))
            lines.append(f"{flag(name)}: {shown} (from {source}) is not allowed; allowed: {allowed(name)}")
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


class _Parser(argparse.ArgumentParser):
    """argparse, except that wrong use is a ConfigError like every other wrong setting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def make_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """One flag per setting, grouped by area; values stay text until they are validated with their source."""
    parser = _Parser(
        prog=prog,
        description=description,
        epilog="Every setting also comes from a YAML file (--config; names with underscores, areas as optional sections) "
        "or from the environment. Flags win over the environment, the environment over files.",
        allow_abbrev=False,
        add_help=True,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=120),
    )
    parser.add_argument(
        "--config", action="append", metavar="FILE", help="YAML file of settings; may be repeated, later wins"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print every setting with its value and source, then stop"
    )
    for area in AREAS:
        group = parser.add_argument_group(area.area)
        for name in area.model_fields:
            _add_flag(group, name)
    return parser


def _add_flag(group: argparse._ArgumentGroup, name: str) -> None:
    info = Config.model_fields[name]
    extra = _extra(name)
    spellings = list(dict.fromkeys([flag(name), f"--{name}", *extra["flags"]]))
    default = info.get_default(call_default_factory=True)
    shown = "none" if default in ("", []) else default
    text = f"{info.description} [{shown}; {', '.join(variables(name))}]".replace("%", "%%")
    if is_bool(name):
        kind: dict[str, Any] = {"nargs": "?", "const": "true", "metavar": "BOOL"}
        group.add_argument(
            f"--no-{name.replace('_', '-')}", dest=name, action="store_const", const="false", help=argparse.SUPPRESS
        )
    else:
        kind = {"metavar": name.rsplit("_", 1)[-1].upper()}
    group.add_argument(spellings[0], dest=name, help=text, **kind)
    for other in spellings[1:]:
        group.add_argument(other, dest=name, help=argparse.SUPPRESS, **kind)


def _parse_flags(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    known = [option for action in parser._actions for option in action.option_strings]
    for word in argv:
        name = word.split("=", 1)[0]
        if name.startswith("--") and len(name) > 2 and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"unknown flag {name}{hint} (see {parser.prog} --help)")
    parser.set_defaults(**{action.dest: None for action in parser._actions if action.dest not in ("help", "dry_run")})
    parsed, rest = parser.parse_known_args(argv)
    if rest:
        raise ConfigError(
            f"unexpected argument {rest[0]!r}: settings are given as --name value (see {parser.prog} --help)"
        )
    return {name: value for name, value in vars(parsed).items() if value is not None}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings, flat or with areas as sections. Unknown names are errors, with the nearest known one."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"--config {path}: expected a mapping of settings, got {type(loaded).__name__}")
    sections = {area.area for area in AREAS}
    flat: dict[str, Any] = {}
    for key, value in loaded.items():
        entries = value if key in sections and isinstance(value, dict) else {key: value}
        for name, inner in entries.items():
            name = str(name).replace("-", "_")
            if name not in Config.model_fields:
                close = difflib.get_close_matches(name, Config.model_fields, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ConfigError(f"unknown setting '{name}' in {path}{hint}")
            flat[name] = inner
    return flat


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(setting, value, source) of every variable that is set and not empty. Aliases that disagree are an error."""
    found: list[tuple[str, str, str]] = []
    for name in Config.model_fields:
        given = [(variable, environ[variable]) for variable in variables(name) if environ.get(variable)]
        if not given:
            continue
        if len({value for _, value in given}) > 1:
            shown = " and ".join(variable if _secret(name) else f"{variable}={value!r}" for variable, value in given)
            raise ConfigError(f"{flag(name)}: the environment disagrees with itself: {shown}; set one of them")
        found.append((name, given[0][1], f"environment {given[0][0]}"))
    derived = {variable for name in Config.model_fields for variable in variables(name)}
    for variable in environ:
        if not variable.startswith("SWE_") or variable in derived or variable in OTHER_VARIABLES:
            continue
        # SWE_RL_ is ours alone; other programs may have variables with SWE_, but none that is a slip of the pen from one of ours.
        ours = variable.startswith("SWE_RL_")
        close = difflib.get_close_matches(variable, derived, n=1, cutoff=0.6 if ours else 0.9)
        if ours or close:
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"unknown setting {variable} in the environment{hint}")
    return found


OTHER_VARIABLES = {
    "SWE_RL_TRACEBACK",
    "SWE_RL_SUPERVISED",
    "SWE_RL_SUPERVISOR",
    "SWE_RL_END_WITH_STDIN",
    "SWE_RL_PYTHON",
    "SWE_RL_SGLANG_CPU",
    "SWE_RL_STORAGE_DRIVER",
    "SWE_RL_TOOLS_ENV",
}  # read before or beside the config


def _extra(name: str) -> dict[str, Any]:
    extra = Config.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return extra


def _secret(name: str) -> bool:
    return name in Config.model_fields and bool(_extra(name)["secret"])


def resolved_table(loaded: Loaded) -> str:
    """The resolved config as YAML-like lines grouped by area, each with its source; secrets are hidden."""
    lines = []
    for area in AREAS:
        lines.append(f"{area.area}:")
        for name in area.model_fields:
            value = "***" if _secret(name) and getattr(loaded.config, name) else getattr(loaded.config, name)
            lines.append(f"  {name}: {_yaml_scalar(value)}  # {loaded.sources.get(name, DEFAULT)}")
    return "\n".join(lines)


def _yaml_scalar(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("\n...").strip()


def dump_yaml(config: Config) -> str:
    """The whole config as YAML that `--config` reads back; secrets are left out."""
    return yaml.safe_dump({k: v for k, v in config.model_dump().items() if not _secret(k)}, sort_keys=False)


@contextlib.contextmanager
def naming_sources(loaded: Loaded) -> Iterator[None]:
    """Let a ConfigError of a later check say where the settings that it names came from, if not from defaults or flags."""
    try:
        yield
    except ConfigError as error:
        lines = []
        for line in str(error).splitlines():
            named = dict.fromkeys(word[2:].replace("-", "_") for word in re.findall(r"--[a-z][a-z0-9-]*", line))
            origins = [f"{flag(name)} is from {loaded.sources[name]}" for name in named if name in loaded.sources]
            origins = [origin for origin in origins if " is from flag " not in origin]
            lines.append(f"{line} ({', '.join(origins)})" if origins else line)
        raise ConfigError("\n".join(lines)) from None


def print_and_exit_on_dry_run(loaded: Loaded) -> None:
    """`--dry-run`: print the resolved config and stop with exit code 0."""
    if loaded.dry_run:
        print(resolved_table(loaded))
        sys.exit(0)
