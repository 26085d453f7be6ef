"""A stand-in for a model hub: the part of its HTTP interface that `huggingface_hub` uses to read and to push, with faults."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_writer"
READ_TOKEN = "hf_reader"
LFS_SUFFIXES = (".safetensors", ".bin")


class Hub:
    """Repositories in memory: name -> path -> content. Tests read and change them, and the faults."""

    def __init__(self) -> None:
        self.address = ""
        self.clear()

    def clear(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.commits: list[tuple[str, str, str]] = []  # repository, branch, message
        self.requests: list[tuple[str, str]] = []  # method, path
        self.truncated: set[str] = set()  # files whose body ends early, although the headers promise all of it
        self.failing = 0  # the status that every request is answered with
        self.delay = 0.0
        self.blobs: dict[str, bytes] = {}

    def revision(self, repo: str) -> str:
        files = sorted((path, hashlib.sha1(data).hexdigest()) for path, data in self.repos[repo].items())
        return hashlib.sha1(repr(files).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = self._chunks()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        time.sleep(self.hub.delay)
        if self.hub.failing:
            return self._send(self.hub.failing, b"{}")
        parts = path.strip("/").split("/")
        if "resolve" in parts and self.command in ("GET", "HEAD"):
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.startswith("/lfs/") and self.command == "PUT":
            self.hub.blobs[parts[1]] = body
            return self._send(200)
        if path.endswith("/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._api("/".join(parts[2:4]), parts[4:], body)
        return self._send(404, b"{}")

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _may(self, *tokens: str) -> bool:
        return self.headers.get("Authorization", "") in [f"Bearer {token}" for token in tokens]

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        if not self._visible(repo):
            return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        commit = self.hub.revision(repo)
        if revision not in ("main", commit):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if path not in self.hub.repos[repo]:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        data = self.hub.repos[repo][path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        status, start = 200, 0
        if (wanted := self.headers.get("Range", "")).startswith("bytes="):
            status, start = 206, int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(status, data[start:], headers, cut=path in self.hub.truncated)
        return None

    def _visible(self, repo: str) -> bool:
        return repo in self.hub.repos and (repo not in self.hub.private or self._may(TOKEN, READ_TOKEN))

    def _validate(self, card: str) -> None:
        """The hub refuses a card whose metadata is not YAML between two lines of dashes."""
        try:
            wrong = "" if isinstance(yaml.safe_load(card.split("---")[1]), dict) else "no metadata"
        except (IndexError, yaml.YAMLError) as error:
            wrong = str(error)
        self._json({"errors": [{"message": wrong}] if wrong else [], "warnings": []}, 400 if wrong else 200)

    def _create(self, asked: dict[str, Any]) -> None:
        if not self._may(TOKEN):
            wrong = 403 if self._may(READ_TOKEN) else 401
            return self._send(
                wrong, b'{"error": "not allowed"}', {"X-Error-Message": "Invalid credentials in Authorization header"}
            )
        repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if repo in self.hub.repos:
            return self._json({"error": "exists", "url": f"{self.hub.address}/{repo}"}, 409)
        self.hub.repos[repo] = {}
        if asked.get("private") or asked.get("visibility") == "private":
            self.hub.private.add(repo)
        return self._json({"url": f"{self.hub.address}/{repo}", "name": repo})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = [
            one
            | (
                {}
                if one["oid"] in self.hub.blobs
                else {"actions": {"upload": {"href": f"{self.hub.address}/lfs/{one['oid']}"}}}
            )
            for one in asked["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _api(self, repo: str, rest: list[str], body: bytes) -> None:
        if not self._visible(repo):
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if rest[:1] == ["preupload"]:
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(LFS_SUFFIXES) else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        if rest[:1] == ["commit"]:
            return self._commit(repo, rest[1], [json.loads(line) for line in body.splitlines()])
        if rest[:1] == ["tree"]:
            inside = "".join(f"{part}/" for part in rest[2:])
            files = {name: data for name, data in sorted(self.hub.repos[repo].items()) if name.startswith(inside)}
            if not files:
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return self._json(
                [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in files.items()]
            )
        commit = self.hub.revision(repo)
        return self._json(
            {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in self.hub.repos[repo]]}
        )

    def _commit(self, repo: str, branch: str, lines: list[dict[str, Any]]) -> None:
        if not self._may(TOKEN):
            return self._send(403, b"{}")
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                self.hub.repos[repo][value["path"]] = base64.b64decode(value["content"])
            else:
                data = self.hub.blobs[value["oid"]]
                assert (hashlib.sha256(data).hexdigest(), len(data)) == (value["oid"], value["size"])
                self.hub.repos[repo][value["path"]] = data
        self.hub.commits.append((repo, branch, lines[0]["value"]["summary"]))
        commit = self.hub.revision(repo)
        address = f"{self.hub.address}/{repo}/commit/{commit}"
        return self._json({"commitUrl": address, "commitOid": commit, "success": True, "hookOutput": ""})

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a free port of this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
