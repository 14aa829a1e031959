"""`--sandbox auto`: the strongest kind that works here, and a person hears why it is not a stronger one."""

from __future__ import annotations

import pytest

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.errors import ConfigError
from swe_rl.sandbox import provider as module


@pytest.mark.parametrize(("missing", "chosen"), [(("docker", "podman", "bubblewrap"), "process"), ((), "process")])
async def test_what_was_passed_over_and_what_is_not_isolated_is_said(monkeypatch, tmp_path, missing, chosen):
    real = module._open

    async def opened(name, config):
        if name in missing:
            raise ConfigError(f"no {name} here")
        return await real("process", config)

    monkeypatch.setattr(module, "_open", opened)
    provider = await module.open_provider(SandboxSettings(sandbox_root=str(tmp_path)))
    try:
        assert provider.name == chosen
        assert provider.notes[:-1] == [f"{name} passed over: no {name} here" for name in missing]
        assert "does not isolate" in provider.notes[-1]
    finally:
        await provider.aclose()
