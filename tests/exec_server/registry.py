"""A registry on loopback (the distribution API, pull only) that can refuse, limit and delay, for tests of pulls."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections import Counter

from aiohttp import web
from aiohttp.test_utils import TestServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    """Serves one image with one layer under every name and tag that is in `names`."""

    def __init__(self, *names: str, password: str = "", megabytes: int = 0) -> None:
        """megabytes: of random bytes in the layer."""
        self.names, self.password = set(names), password
        self.rate_limited = 0  # so many next manifests are refused with 429
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: Counter[str] = Counter()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name.replace("/", "-").replace(":", "-")))
            filler = tarfile.TarInfo("filler")
            filler.size = megabytes << 20
            tar.addfile(filler, io.BytesIO(os.urandom(filler.size)))
        layer = gzip.compress(packed.getvalue(), compresslevel=0 if megabytes else 9)
        config = {"architecture": "amd64", "os": "linux", "config": {}}
        config["rootfs"] = {"type": "layers", "diff_ids": [digest(packed.getvalue())]}  # type: ignore[assignment]
        raw = json.dumps(config).encode()
        self.blobs = {digest(layer): layer, digest(raw): raw}
        gz = "application/vnd.docker.image.rootfs.diff.tar.gzip"
        image = "application/vnd.docker.container.image.v1+json"
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": image, "size": len(raw), "digest": digest(raw)},
                "layers": [{"mediaType": gz, "size": len(layer), "digest": digest(layer)}],
            }
        ).encode()
        app = web.Application()
        app.router.add_get("/v2/", self._base)
        app.router.add_get("/v2/{name:.+}/manifests/{ref}", self._manifest)
        app.router.add_get("/v2/{name:.+}/blobs/{digest}", self._blob)
        self.server = TestServer(app)

    async def __aenter__(self) -> Registry:
        await self.server.start_server()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.close()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _refusal(self, request: web.Request) -> web.Response | None:
        wanted = "Basic " + base64.b64encode(f"user:{self.password}".encode()).decode()
        if self.password and request.headers.get("Authorization") != wanted:
            return web.json_response({"errors": []}, status=401, headers={"WWW-Authenticate": 'Basic realm="test"'})
        return None

    async def _base(self, request: web.Request) -> web.Response:
        return self._refusal(request) or web.json_response({})

    async def _manifest(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        reference = request.match_info["ref"]
        name = f"{request.match_info['name']}:{reference}"
        self.asked[name] += 1
        if self.rate_limited:
            self.rate_limited -= 1
            body = {"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your pull rate limit"}]}
            return web.json_response(body, status=429)
        if name not in self.names and reference != digest(self.manifest):
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}, status=404)
        return web.Response(
            body=self.manifest, content_type=MANIFEST, headers={"Docker-Content-Digest": digest(self.manifest)}
        )

    async def _blob(self, request: web.Request) -> web.Response:
        await self.gate.wait()
        return self._refusal(request) or web.Response(body=self.blobs[request.match_info["digest"]])
