"""Endpoints of the Hugging Face hub that data sets need, in memory: ``python -m tests.servers.hub PORT``.

A commit is refused unless its parent is the newest one. ``GET /requests`` lists what was asked.
"""

import base64
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "Bearer hf_test"  # noqa: S105  # the tests'
FILES: dict[str, dict[str, bytes]] = {}
COMMITS: dict[str, list[str]] = {}
BLOBS: dict[str, bytes] = {}
REQUESTS: list[str] = []


class Hub(BaseHTTPRequestHandler):
    """Repositories, their files, uploads by git LFS, and commits."""

    protocol_version = "HTTP/1.1"

    def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def url(self) -> str:
        return f"http://{self.headers['Host']}"

    def missing(self, code: str) -> None:
        self.answer({"error": code}, 404, X_Error_Code=code)

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        REQUESTS.append(f"{self.command} {path}")
        words = path.strip("/").split("/")
        if words == ["requests"]:
            self.answer(REQUESTS)
            return
        name = "/".join(words[2:4] if words[0] == "api" else words[1:3])
        if name not in FILES:
            self.missing("RepoNotFound")
        elif words[0] == "datasets":  # /datasets/USER/NAME/resolve/main/PATH
            self.send_file(FILES[name].get("/".join(words[5:])))
        elif words[4:5] == ["tree"]:
            self.tree(FILES[name], "/".join(words[6:]))
        else:
            self.answer({"id": name, "sha": COMMITS[name][-1], "private": False, "siblings": []})

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_file(self, data: bytes | None) -> None:
        if data is None:
            self.missing("EntryNotFound")
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last or len(data)) + 1]
        self.answer(part, 206, Content_Range=f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")

    def tree(self, files: dict[str, bytes], folder: str) -> None:
        prefix = f"{folder}/" if folder else ""
        inside = {path: data for path, data in files.items() if path.startswith(prefix)}
        if folder and not inside:
            self.missing("EntryNotFound")
            return
        deep = "recursive=true" in self.path.lower()
        folders = {path.rpartition("/")[0] for path in inside} - {"", folder}
        listed: list[dict[str, object]] = [
            {"type": "directory", "path": path, "oid": "0"} for path in sorted(folders)
        ]
        listed += [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha256(data).hexdigest()}
            for path, data in inside.items()
        ]
        self.answer([one for one in listed if deep or "/" not in str(one["path"]).removeprefix(prefix)])

    def do_POST(self) -> None:
        path, data = unquote(urlsplit(self.path).path), self.body()
        REQUESTS.append(f"{self.command} {path}")
        words = path.strip("/").split("/")
        if self.headers.get("Authorization") != TOKEN:
            self.answer({"error": "Invalid credentials"}, 401)
        elif path == "/api/repos/create":
            facts = json.loads(data)
            name = f"{facts['organization']}/{facts['name']}"
            new = name not in FILES
            if new:
                FILES[name], COMMITS[name] = {".gitattributes": b"*.parquet filter=lfs\n"}, ["0" * 40]
            self.answer({"url": f"{self.url}/datasets/{name}"}, 200 if new else 409)
        elif path == "/api/validate-yaml":
            self.answer({"warnings": [], "errors": []})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [self.upload_of(one) for one in json.loads(data)["objects"]]
            self.answer({"transfer": "basic", "objects": objects})
        elif words[4] == "preupload":
            asked = [file["path"] for file in json.loads(data)["files"]]
            mode = {True: "lfs", False: "regular"}
            files = [
                {"path": p, "uploadMode": mode[p.endswith(".parquet")], "shouldIgnore": False} for p in asked
            ]
            self.answer({"files": files})
        elif words[4] == "commit":
            self.commit("/".join(words[2:4]), [json.loads(line) for line in data.splitlines()])

    def upload_of(self, one: dict[str, Any]) -> dict[str, Any]:
        upload = {"href": f"{self.url}/blobs/{one['oid']}"}
        return one if one["oid"] in BLOBS else {**one, "actions": {"upload": upload}}

    def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        files = dict(FILES[name])
        for kind, value in ((line["key"], line["value"]) for line in lines):
            if kind == "header" and value.get("parentCommit", COMMITS[name][-1]) != COMMITS[name][-1]:
                self.answer({"error": "A commit has happened since."}, 412)
                return
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = BLOBS[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        FILES[name] = files
        COMMITS[name].append(f"{len(COMMITS[name]):040x}")
        self.answer({"commitUrl": f"{self.url}/datasets/{name}/commit/1", "commitOid": COMMITS[name][-1]})

    def do_PUT(self) -> None:
        data, digest = self.body(), self.path.rpartition("/")[2]
        REQUESTS.append(f"{self.command} {self.path}")
        assert hashlib.sha256(data).hexdigest() == digest
        BLOBS[digest] = data
        self.answer(b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Say nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hub).serve_forever()
