"""A hub on 127.0.0.1 that speaks as much of huggingface.co's interface as pushing and fetching a model takes."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlparse

Repos = dict[str, dict[str, dict[str, bytes]]]
"""By name, by branch, by path: what the files hold."""


@contextmanager
def fake_hub(token: str = "hf_secret") -> Iterator[tuple[str, Repos]]:
    """Its address and what it holds; writing needs the token."""
    repos: Repos = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _send(self, code: int, body: bytes, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _json(self, found: object, code: int = 200) -> None:
            self._send(code, json.dumps(found).encode(), Content_Type="application/json")

        def do_POST(self) -> None:
            body, path = self._body(), unquote(urlparse(self.path).path)
            if self.headers.get("Authorization") != f"Bearer {token}":
                self._json({"error": "Invalid username or password."}, 401)
            elif path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
                repos.setdefault(name, {"main": {}})
                self._json({"url": f"http://{self.headers['Host']}/{name}", "name": name})
            elif path == "/api/validate-yaml":
                self._json({"errors": [], "warnings": []})
            elif "/branch/" in path:
                name, branch = path.removeprefix("/api/models/").split("/branch/")
                repos[name].setdefault(branch, dict(repos[name]["main"]))
                self._json({})
            elif "/preupload/" in path:
                files = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                    for f in json.loads(body)["files"]
                ]
                self._json({"files": files})
            elif "/commit/" in path:
                name, branch = path.removeprefix("/api/models/").split("/commit/")
                for line in body.splitlines():
                    told = json.loads(line)
                    if told["key"] == "file":
                        repos[name][branch][told["value"]["path"]] = base64.b64decode(told["value"]["content"])
                sha = _sha(repos[name][branch])
                self._json({"commitUrl": f"http://{self.headers['Host']}/{name}/commit/{sha}", "commitOid": sha})
            else:
                self._json({"error": path}, 404)

        def do_GET(self) -> None:
            path = unquote(urlparse(self.path).path)
            if "/tree/" in path:
                name, revision = path.removeprefix("/api/models/").split("/tree/")
                files = next(one for one in repos[name].values() if _sha(one) == revision)
                listed = [
                    {"type": "file", "path": one, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for one, content in files.items()
                ]
                self._json(listed)
                return
            if path.startswith("/api/models/"):
                name, _, branch = path.removeprefix("/api/models/").partition("/revision/")
                files = repos.get(name, {}).get(branch or "main")
                if files is None:
                    self._send(404, b"{}", X_Error_Code="RepoNotFound")
                    return
                siblings = [{"rfilename": one} for one in files]
                self._json({"id": name, "modelId": name, "sha": _sha(files), "siblings": siblings, "private": False})
                return
            name, _, rest = path.lstrip("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            branches = repos.get(name, {}).values()
            content = next((one[file] for one in branches if _sha(one) == revision and file in one), None)
            if content is None:
                self._send(404, b"", X_Error_Code="EntryNotFound")
                return
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            self._send(200, content, ETag=etag, X_Repo_Commit=revision)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", repos
    finally:
        server.shutdown()
        server.server_close()


def _sha(files: dict[str, bytes]) -> str:
    return hashlib.sha1(json.dumps({name: len(content) for name, content in files.items()}).encode()).hexdigest()
