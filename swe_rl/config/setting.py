"""How one setting is declared: one name, one type, one default, one line of help (design rule 11)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Area(BaseModel):
    """A group of settings that belong together; the class attribute `area` is the heading in `--help`."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        protected_namespaces=(),
        arbitrary_types_allowed=False,
        allow_inf_nan=False,  # an infinite wait is no bound, an infinite rate no rate
    )


def setting(
    default: Any,
    help: str,
    *,
    env: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    secret: bool = False,
    **constraints: Any,
) -> Any:
    """Declare one setting.

    env: further variable names beside the derived one (`SWE_RL_<NAME>`, or `<NAME>` itself where it starts with `swe_`);
    where several are set they must agree. flags: further flag spellings. secret: printed as `***`.
    constraints: pydantic's (`ge`, `gt`, `le`, `lt`, `pattern` ...); they are repeated in error messages.
    """
    extra: dict[str, Any] = {"env": list(env), "flags": list(flags), "secret": secret}
    if callable(default):
        return Field(
            default_factory=default, description=help, json_schema_extra=extra, validate_default=True, **constraints
        )
    return Field(default=default, description=help, json_schema_extra=extra, validate_default=True, **constraints)
