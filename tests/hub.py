"""A stand-in for the Hugging Face Hub on this machine: repositories are folders, and every request is written down."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class Hub(ThreadingHTTPServer):
    """Takes in what `huggingface_hub` sends to make a repository and to commit files to it.

    Args:
        folder: Where repositories are kept: `FOLDER/USER/NAME/FILES`.
    """

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.created: list[dict[str, Any]] = []
        self.commits: list[dict[str, Any]] = []
        self.opens = threading.Event()  # until it is set, commits have to wait
        self.opens.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: bytes) -> Any:
        parts = unquote(path.split("?")[0]).strip("/").split("/")
        if parts == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if "preupload" in parts:
            files = json.loads(body)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if "commit" in parts:
            self.opens.wait(timeout=60)
            return self._commit("/".join(parts[2:4]), parts[5], [json.loads(line) for line in body.splitlines()])
        assert parts == ["api", "validate-yaml"], path
        return {"errors": [], "warnings": []}

    def _create(self, asked: dict[str, Any]) -> dict[str, str]:
        self.created.append(asked)
        name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return {"url": f"{self.url}/{name}", "name": name}

    def _commit(self, name: str, revision: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        header = next(entry["value"] for entry in entries if entry["key"] == "header")
        files = {entry["value"]["path"]: entry["value"] for entry in entries if entry["key"] == "file"}
        for path, file in files.items():
            target = self.folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(file["content"]))
        self.commits.append({"message": header["summary"], "revision": revision, "files": sorted(files)})
        oid = f"{len(self.commits):040d}"
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{name}/commit/{oid}", "hookOutput": ""}


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:  # the name that http.server calls
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = json.dumps(self.server.answer(self.path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def running_hub(folder: Path) -> Iterator[Hub]:
    """Runs a hub while the block does."""
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
