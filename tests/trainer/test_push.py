"""Weights reach a real engine over HTTP: after the push it samples with the trainer's log-probs and the new version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from swe_rl.engine.client import EngineClient
from swe_rl.engine.embedded import server
from swe_rl.engine.embedded.app import make_app
from swe_rl.errors import EngineError
from swe_rl.trainer.packing import TrainingSequence, make_micro_batch
from tests.trainer.conftest import make_config
from tests.trainer.test_worker_resume import plan

PROMPT = [3, 14, 15, 92, 65]
SAMPLING = {"temperature": 0.7, "max_new_tokens": 12, "ignore_eos": True}


@pytest.mark.parametrize("update", ["tensor", "disk"])
@pytest.mark.parametrize("model", ["tiny_model", "untied_model"])
async def test_engine_and_trainer_agree_after_a_push(update, model, request, tmp_path: Path, start_worker):
    folder = request.getfixturevalue(model)
    worker = start_worker(make_config(folder, engine_update=update, rollout_temperature=0.7))
    arguments = ["--model-path", str(folder), "--context-length", "256", "--max-total-tokens", "2048"]
    service = server.build(server.parser().parse_args(arguments))
    service.scheduler.start()
    http = TestServer(make_app(service, max_body_bytes=64 << 20), handler_cancellation=True)
    await http.start_server()
    url = str(http.make_url("/")).rstrip("/")
    client = EngineClient([url], request_timeout=60)
    try:

        async def difference() -> tuple[float, set[int]]:
            """Engine against trainer on freshly sampled tokens, and the versions the engine stamped on them."""
            result = await client.generate(PROMPT, SAMPLING, rid="r")
            tokens = np.asarray(PROMPT + result.output_ids)
            sequence = TrainingSequence(tokens, np.arange(len(PROMPT), len(tokens)))
            trainer = worker.backend.log_probs([make_micro_batch([sequence])], reference=False)[0]
            return float(np.abs(trainer.numpy() - np.asarray(result.log_probs)).max()), set(result.weight_versions)

        assert (await difference())[0] < 1e-4
        worker.train(plan(worker.config, 0)[0])
        stale, _ = await difference()
        assert stale > 1e-2
        await asyncio.to_thread(worker.push_weights, [url], 7, str(tmp_path))
        fresh, versions = await difference()
        assert fresh < 1e-4
        assert versions == {7}
        assert list(tmp_path.iterdir()) == []  # the folder of a disk update is gone
    finally:
        await client.aclose()
        await http.close()
        service.scheduler.stop()


async def test_engines_of_several_processes_get_a_copy_for_each(tiny_model, tmp_path: Path, start_worker):
    copies: list[int] = []

    async def answer(http: web.Request) -> web.Response:
        if http.path == "/update_weights_from_tensor":
            copies.append(len((await http.json())["serialized_named_tensors"]))
        return web.json_response({"success": True})

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{route}", answer)
    engine = TestServer(app)
    await engine.start_server()
    worker = start_worker(make_config(tiny_model, engine="sglang", rollout_num_gpus=4, rollout_num_gpus_per_engine=4))
    await asyncio.to_thread(worker.push_weights, [str(engine.make_url("/"))], 1, str(tmp_path))
    await engine.close()
    assert copies == [4]


@pytest.mark.parametrize("own", [True, False])
def test_weights_that_a_killed_push_left_go_with_the_next(own, tiny_model, tmp_path, start_worker):
    """In the run's own folder; a shared one (no run folder) may hold those of another run."""
    left = ["weights_000003", ".partial-weights_000004"]
    for name in (*left, "weights_mine", "checkpoints"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x")
    run_dir = str(tmp_path) if own else ""
    worker = start_worker(make_config(tiny_model, engine_update="disk", run_dir=run_dir))
    with pytest.raises(EngineError):
        worker.push_weights(["http://127.0.0.1:9"], 5, str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["checkpoints", "weights_mine", *left][: 2 if own else 4]
    )


def test_an_engine_that_is_gone_is_named(tiny_model, tmp_path, start_worker):
    worker = start_worker(make_config(tiny_model))
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        worker.push_weights(["http://127.0.0.1:9"], 1, str(tmp_path))
    assert worker.train(plan(worker.config, 0)[0])["train/optimizer_steps"] == 1  # and training could go on
