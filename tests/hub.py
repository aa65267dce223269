"""A stand-in for the Hugging Face Hub on this machine: repositories are folders, and every request is written down."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class Hub(ThreadingHTTPServer):
    """Takes in repositories and commits as `huggingface_hub` sends them, to `FOLDER/USER/NAME`; gives out data sets."""

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.created: list[dict[str, Any]] = []
        self.commits: list[dict[str, Any]] = []
        self.asked: list[str] = []  # addresses that were read
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

    def read(self, path: str) -> Found:
        """Answers what `datasets` asks of a data set: `FOLDER/USER/NAME`, of a revision `FOLDER/USER/NAME@REVISION`."""
        parts = unquote(path.split("?")[0]).strip("/").split("/")
        self.asked.append("/".join(parts))
        is_file = parts[0] == "datasets" and parts[3:4] == ["resolve"]
        name, rest = ("/".join(parts[1:3]), parts[4:]) if is_file else ("/".join(parts[2:4]), parts[5:])
        if not (is_file or parts[:2] == ["api", "datasets"]) or not (self.folder / name).is_dir():
            return Found("RepoNotFound")
        folders = [self.folder / name, *sorted(self.folder.glob(f"{name}@*"))]
        commits = {f"{place:040d}": folder for place, folder in enumerate(folders)}
        named = {folder.name.partition("@")[2] or "main": commit for commit, folder in commits.items()}
        revision = rest[0] if rest else "main"
        commit = named.get(revision, revision)
        if commit not in commits:
            return Found("RevisionNotFound")
        folder = commits[commit]
        if is_file:
            file = folder.joinpath(*rest[1:])
            return Found(commit=commit, content=file.read_bytes()) if file.is_file() else Found("EntryNotFound", commit)
        return self._listing(name, commit, folder, "/".join(rest[1:]) if "tree" in parts else None)

    def _listing(self, name: str, commit: str, folder: Path, below: str | None) -> Found:
        listed = [
            {"type": "file", "path": str(own.relative_to(folder)), "size": own.stat().st_size, "oid": own.name}
            for own in sorted(folder.rglob("*"))
            if own.is_file()
        ]
        if below is None:
            siblings = [{"rfilename": own["path"]} for own in listed]
            return Found(commit=commit, content=json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())
        if not (folder / below).is_dir():
            return Found("EntryNotFound", commit)
        return Found(commit=commit, content=json.dumps([f for f in listed if f["path"].startswith(below)]).encode())


@dataclass(frozen=True)
class Found:
    """What there is at an address: bytes, or an error."""

    error: str = ""
    commit: str = ""
    content: bytes = b""


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        found = self.server.read(self.path)
        content, status = found.content, 404 if found.error else 200
        headers = {"X-Repo-Commit": found.commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        if found.error:
            headers = {"X-Error-Code": found.error}
        asked = self.headers.get("Range")
        if asked and not found.error:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            content, status = content[start : end + 1], 206
        self._send(status, headers, content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:  # the name that http.server calls
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = json.dumps(self.server.answer(self.path, body)).encode()
        self._send(200, {"Content-Type": "application/json"}, answer)

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def running_hub(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
