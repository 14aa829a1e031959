"""The alternative that `bench/sandbox.py` measures against: a thread per request that calls the docker CLI every time."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        command = ["docker", "exec", body["container_id"], "bash", "-c", body["command"]]
        end = subprocess.run(command, capture_output=True, timeout=120, check=False)
        answer = json.dumps({"returncode": end.returncode, "output": end.stdout.decode(errors="replace")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        """Quiet."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.request_queue_size = 128
    print(server.server_address[1], flush=True)
    server.serve_forever()
    sys.exit(0)
