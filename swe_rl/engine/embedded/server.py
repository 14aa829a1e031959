"""`swe-rl engine`: serve a Hugging Face folder on the CPU with SGLang's HTTP interface.

The process ends by itself on SIGTERM, on SIGINT, and (with --end-with-stdin) when whoever started it is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from swe_rl.errors import EngineError, UsageError

log = logging.getLogger("swe_rl.engine")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="swe-rl engine",
        description="Serve a causal LM on the CPU: SGLang's /generate, weight updates and control routes.",
        epilog='try it: curl localhost:30000/generate -d \'{"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}}\'',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument(
        "--model-path", required=True, help="Hugging Face folder: config.json, safetensors, maybe a tokenizer"
    )
    p.add_argument("--host", default="127.0.0.1", help="address to bind; the engine has no authentication")
    p.add_argument("--port", type=int, default=30000, help="0 = any free port; it is printed as JSON on stdout")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="type of weights and KV cache")
    p.add_argument("--threads", type=int, default=1, help="torch threads")
    p.add_argument("--max-running-requests", type=int, default=64, help="sequences computed together")
    p.add_argument(
        "--max-total-tokens",
        type=int,
        default=262144,
        help="running sequences x the longest of them; as many tokens are cached",
    )
    p.add_argument("--max-queued-requests", type=int, default=4096, help="unfinished sequences before 503")
    p.add_argument("--chunked-prefill-size", type=int, default=512, help="prompt tokens computed per step")
    p.add_argument("--context-length", type=int, default=0, help="longest sequence; 0 = what the model allows")
    p.add_argument("--weight-version", default="0", help="name of the weights in --model-path")
    p.add_argument("--random-seed", type=int, default=1, help="seed of requests without sampling_seed")
    p.add_argument(
        "--max-body-mb", type=int, default=1024, help="largest request body (weight updates are the large ones)"
    )
    p.add_argument(
        "--end-with-stdin", action="store_true", help="end when stdin is closed: the starter holds the other end"
    )
    return p


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for values that cannot work, before anything is loaded."""
    for name in ("threads", "max_running_requests", "max_queued_requests", "chunked_prefill_size", "max_body_mb"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port must be 0 to 65535, got {args.port}")
    if args.max_total_tokens < 256:
        raise UsageError(f"--max-total-tokens must be at least 256, got {args.max_total_tokens}")
    if args.context_length < 0:
        raise UsageError(f"--context-length must not be negative, got {args.context_length}")


def build(args: argparse.Namespace) -> Any:
    """Load model and tokenizer and return the EngineService. Torch is imported here, after the threads are set."""
    import torch

    from swe_rl.engine.embedded.runner import ModelRunner
    from swe_rl.engine.embedded.scheduler import Scheduler
    from swe_rl.engine.embedded.service import EngineService
    from swe_rl.engine.embedded.stopping import StopRules

    torch.set_num_threads(args.threads)
    runner = ModelRunner(args.model_path, args.dtype)
    if args.context_length:
        runner.context_length = min(runner.context_length, args.context_length)
    tokenizer = _tokenizer(args.model_path)
    scheduler = Scheduler(
        runner,
        StopRules(runner.eos_ids, tokenizer),
        max_batch=args.max_running_requests,
        cache_tokens=args.max_total_tokens,
        prefill_budget=args.chunked_prefill_size,
    )
    scheduler.version = args.weight_version
    return EngineService(scheduler, max_queued=args.max_queued_requests, seed=args.random_seed, tokenizer=tokenizer)


def _tokenizer(path: str) -> Any | None:
    if not any((Path(path) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True)


async def serve(args: argparse.Namespace, service: Any) -> None:
    """Run until a signal or the end of stdin; then stop listening, abort what runs, and end within seconds."""
    from swe_rl.engine.embedded.app import make_app

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if args.end_with_stdin:
        _watch_stdin(lambda: loop.call_soon_threadsafe(ended.set))
    app = make_app(service, max_body_bytes=args.max_body_mb << 20)
    # a client that hangs up cancels its handler, and that aborts its sequences
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
    service.scheduler.start()
    try:
        await runner.setup()
        site = web.TCPSite(runner, args.host, args.port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise EngineError(f"cannot listen on {args.host}:{args.port}: {error.strerror}") from error
        host, port = runner.addresses[0][:2]
        print(json.dumps({"url": f"http://{host}:{port}", "pid": os.getpid()}), flush=True)
        await ended.wait()
        log.info("engine ends")
    finally:
        await asyncio.to_thread(service.scheduler.stop)
        await runner.cleanup()


def _watch_stdin(on_end: Any) -> None:
    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                continue
        on_end()

    threading.Thread(target=watch, name="stdin-watch", daemon=True).start()


def main(argv: list[str]) -> int:
    """Entry of `swe-rl engine`. Raises UsageError for impossible flags, DataError for a folder that is no model."""
    args = parser().parse_args(argv)
    check(args)
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    service = build(args)
    asyncio.run(serve(args, service))
    return 0
