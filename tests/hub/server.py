"""A small Hub for tests, that the real client and the real command line talk to over HTTP.

    with Hub(root) as hub:                        # hub.url; set HF_ENDPOINT to it before huggingface_hub is imported
        hub.fail(r"PUT /_lfs/", status=500)       # a regular expression on "METHOD path"
        hub.fail(r"PUT /_lfs/", drop_after=1000)  # cut the connection after that many bytes of the body
        hub.fail(r"/commit/", after=True, status=504)    # do the work, then lose the answer
        hub.log                                   # what was asked and answered

It knows models of one user and one organisation, LFS uploads and, with `xet=True`, uploads through hf_xet. It has no
quotas, rate limits, redirects or HTTPS.
"""

import base64
import hashlib
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.hub import xet as xet_store
from tests.hub.repository import Commit, File, Repository, State, is_large, large_file

TOKEN = "hf_" + "SecretOfTheTests" * 2
USER, ORGANISATION = "tester", "org"
NOW = "2026-01-01T00:00:00.000Z"
Headers = dict[str, str]


@dataclass(slots=True)
class Fault:
    """What goes wrong `times` times with requests that match, after `skip` that go well."""

    pattern: re.Pattern[str]
    status: int | None
    times: int
    skip: int
    drop_after: int | None
    cut_after: int | None
    delay: float
    after: bool
    headers: Headers
    message: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request: bytes of its body and of the answer's; status 0 where the connection was cut."""

    method: str
    path: str
    status: int
    received: int
    sent: int


@dataclass(slots=True)
class Hub:
    """The server; `role` is the token's."""

    root: Path
    xet: bool = False
    role: str = "write"
    log: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    state: State = field(init=False)
    httpd: ThreadingHTTPServer = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        (self.root / "blobs").mkdir(parents=True, exist_ok=True)
        self.state = State(self.root)
        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self}))
        self.httpd.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.httpd.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.httpd.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()

    def repository(self, name: str) -> Repository:
        return self.state.repositories[name]

    def content(self, name: str, path: str, ref: str = "main") -> bytes:
        return self.read(self.repository(name).head(ref).files[path])

    def read(self, file: File) -> bytes:
        blob = self.state.blob(file.key)
        with self.lock:
            if self.xet and file.lfs and not blob.exists():
                xet_store.fetch(self.root, file.lfs, file.size, blob)
        return blob.read_bytes()

    def fail(
        self,
        pattern: str,
        status: int | None = None,
        *,
        times: int = 1,
        skip: int = 0,
        drop_after: int | None = None,
        cut_after: int | None = None,
        delay: float = 0,
        after: bool = False,
        headers: Headers | None = None,
        message: str = "injected",
    ) -> None:
        """Let requests go wrong: `drop_after` bytes of the body taken, `cut_after` bytes of the answer given."""
        self.faults.append(
            Fault(re.compile(pattern), status, times, skip, drop_after, cut_after, delay, after, headers or {}, message)
        )

    def fault_of(self, request: str) -> Fault | None:
        with self.lock:
            fault = next((f for f in self.faults if f.times > 0 and f.pattern.search(request)), None)
            if fault is None:
                return None
            if fault.skip > 0:
                fault.skip -= 1
                return None
            fault.times -= 1
            return fault

    def reset(self) -> None:
        """Forget requests and faults, not the repositories."""
        self.log.clear()
        self.faults.clear()

    def asked(self, pattern: str) -> list[Request]:
        """The requests whose "METHOD path" matches."""
        return [request for request in self.log if re.search(pattern, f"{request.method} {request.path}")]


class _GoneError(Exception):
    """The connection was cut on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle_any(self) -> None:
        self.data: bytes | None = None
        self.received = 0
        self.fault: Fault | None = None
        address = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(address.query))
        try:
            self.fault = self.hub.fault_of(f"{self.command} {self.path}")
            if self.fault is None or not self._fails_before(self.fault):
                self.route(address.path)
        except (_GoneError, ConnectionError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

    def _fails_before(self, fault: Fault) -> bool:
        time.sleep(fault.delay)
        if fault.drop_after is not None:
            for part in self.parts():
                self.received += len(part)
                if self.received >= fault.drop_after:
                    break
            self.cut()
        if fault.status is None or fault.after:
            return False
        self.refuse(fault.status, fault.message, headers=fault.headers)
        return True

    def parts(self) -> Iterator[bytes]:
        """The body, chunked or not, in parts."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while (count := int(self.rfile.readline().split(b";")[0], 16)) > 0:
                yield self.rfile.read(count)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            part = self.rfile.read(min(left, 1 << 16))
            if not part:
                raise ConnectionError("the client went away")
            left -= len(part)
            yield part

    def body(self) -> bytes:
        if self.data is None:
            self.data = b"".join(self.parts())
            self.received = len(self.data)
        return self.data

    def cut(self) -> None:
        self.hub.log.append(Request(self.command, self.path, 0, self.received, 0))
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()
        raise _GoneError

    def send(self, status: int, value: Any = None, headers: Headers | None = None, data: bytes = b"") -> None:
        fault, self.fault = self.fault, None
        if fault is not None and fault.after:
            if fault.status is None:
                self.cut()
            return self.refuse(fault.status or 0, fault.message, headers=fault.headers)
        self.body()
        data = json.dumps(value).encode() if value is not None else data
        shown = b"" if self.command == "HEAD" else data
        limit = fault.cut_after if fault is not None else None
        self.hub.log.append(Request(self.command, self.path, status, self.received, len(shown)))
        self.send_response(status)
        for key, text in {
            "Content-Type": "application/json",
            "X-Request-Id": "0",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(key, text)
        self.end_headers()
        self.wfile.write(shown if limit is None else shown[:limit])
        if limit is not None and limit < len(shown):
            self.wfile.flush()
            time.sleep(0.2)
            self.cut()

    def refuse(self, status: int, message: str, code: str = "", headers: Headers | None = None) -> None:
        extra = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}
        self.send(status, {"error": message}, extra)

    @property
    def known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def route(self, path: str) -> None:
        if self.headers.get("Authorization") and not self.known:
            return self.refuse(401, "Invalid credentials in Authorization header")
        if path == "/api/whoami-v2":
            return self.whoami()
        if path == "/api/validate-yaml":
            return self.validate()
        if path == "/api/repos/create":
            return self.create()
        if found := re.fullmatch(r"/(.+?)\.git/info/lfs/objects/batch", path):
            return self.batch(found[1])
        if found := re.fullmatch(r"/_lfs/([0-9a-f]{64})", path):
            return self.put(found[1])
        if path == "/_verify":
            return self.verify()
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(found[1], urllib.parse.unquote(found[2]), urllib.parse.unquote(found[3]))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/([a-z-]+)(?:/(.*))?)?", path):
            return self.api(found[1], found[2] or "", urllib.parse.unquote(found[3] or ""))
        self.refuse(404, f"no such page: {path}")

    def repository(self, name: str, write: bool = False) -> Repository | None:
        repository = self.hub.state.repositories.get(name)
        if repository is None or (repository.private and not self.known):
            self.refuse(404 if self.known else 401, "Repository not found", "RepoNotFound")
            return None
        if write and not self.known:
            self.refuse(401, "Invalid username or password.")
            return None
        if write and not repository.writable:
            self.refuse(403, "You do not have write access")
            return None
        return repository

    def whoami(self) -> None:
        if not self.known:
            return self.refuse(401, "Invalid username or password.")
        token = {"accessToken": {"displayName": "t", "role": self.hub.role}}
        organisations = [{"name": ORGANISATION, "roleInOrg": "admin"}]
        self.send(200, {"type": "user", "id": "1", "name": USER, "orgs": organisations, "auth": token})

    def validate(self) -> None:
        problems = [{"message": words} for words in _card_problems(json.loads(self.body())["content"])]
        self.send(400 if problems else 200, {"errors": problems, "warnings": []})

    def create(self) -> None:
        wanted = json.loads(self.body())
        if not self.known:
            return self.refuse(401, "Invalid username or password.")
        owner = wanted.get("organization") or USER
        if owner not in (USER, ORGANISATION) or self.hub.role == "read":
            return self.refuse(403, f"no rights to create a model of {owner}")
        name = f"{owner}/{wanted['name']}"
        if name in self.hub.state.repositories:
            return self.send(409, {"error": "exists", "url": f"{self.hub.url}/{name}"})
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        self.hub.state.create(name, private)
        self.send(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": "1"})

    def api(self, name: str, verb: str, rest: str) -> None:
        writes = self.command == "POST" and verb in ("preupload", "commit", "branch")
        repository = self.repository(name, writes)
        if repository is None:
            return
        if verb in ("", "revision"):
            commit = repository.resolve(rest or "main")
            return self.unknown() if commit is None else self.send(200, self.info(repository, commit))
        if verb == "auth-check":
            if rest == "write" and not (self.known and repository.writable):
                return self.refuse(403, "You do not have write access")
            return self.send(200, {})
        if verb == "branch":
            return self.branch(repository, rest)
        if verb == "discussions":
            return self.discuss(repository, rest)
        revision = rest if rest in repository.refs else rest.partition("/")[0]
        commit = repository.resolve(revision)
        if commit is None:
            return self.unknown()
        if verb.startswith("xet-"):
            return self.xet_token()
        if verb == "tree":
            return self.tree(commit, rest[len(revision) + 1 :])
        if verb == "preupload":
            return self.preupload(commit)
        if verb == "commit":
            return self.take_commit(repository, revision, commit)
        self.refuse(404, f"no such page: {verb}")

    def unknown(self) -> None:
        self.refuse(404, "Invalid rev id", "RevisionNotFound")

    def branch(self, repository: Repository, name: str) -> None:
        if name in repository.refs:
            return self.refuse(409, "Reference already exists")
        repository.refs[name] = repository.refs["main"]
        self.send(200, {})

    def discuss(self, repository: Repository, rest: str) -> None:
        if self.command == "POST":
            number = len(repository.titles) + 1
            repository.titles[number] = json.loads(self.body())["title"]
            repository.refs[f"refs/pr/{number}"] = repository.refs["main"]
            return self.send(200, {"num": number})
        number = int(rest)
        self.send(
            200,
            {
                "title": repository.titles[number],
                "num": number,
                "author": {"name": USER},
                "createdAt": NOW,
                "status": "draft",
                "repo": {"name": repository.id, "type": "model"},
                "isPullRequest": True,
                "events": [],
                "filesWithConflicts": [],
                "changes": {"base": "refs/heads/main"},
                "diff": "",
            },
        )

    def xet_token(self) -> None:
        if not self.hub.xet:
            return self.refuse(404, "Xet is not enabled")
        end = int(time.time()) + 3600
        store = xet_store.address(self.hub.root)
        headers = {"X-Xet-Cas-Url": store, "X-Xet-Access-Token": "x", "X-Xet-Token-Expiration": str(end)}
        self.send(200, {"casUrl": store, "accessToken": "x", "exp": end}, headers)

    def tree(self, commit: Commit, below: str) -> None:
        prefix = f"{below}/" if below else ""
        files = {path: file for path, file in sorted(commit.files.items()) if path.startswith(prefix)}
        if below and not files:
            return self.refuse(404, "Entry not found", "EntryNotFound")
        self.send(200, [_entry(path, file) for path, file in files.items()])

    def preupload(self, commit: Commit) -> None:
        answers = []
        for wanted in json.loads(self.body())["files"]:
            there = commit.files.get(wanted["path"])
            answers.append(
                {
                    "path": wanted["path"],
                    "uploadMode": "lfs" if is_large(wanted["path"], wanted["size"]) else "regular",
                    "shouldIgnore": False,
                    "oid": (there.lfs or there.oid) if there else None,
                }
            )
        self.send(200, {"files": answers})

    def take_commit(self, repository: Repository, revision: str, at: Commit) -> None:
        header: dict[str, Any] = {}
        files = dict(at.files)
        for line in filter(bytes.strip, self.body().splitlines()):
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                header = value
            elif item["key"] == "file":
                files[value["path"]] = self.hub.state.store(base64.b64decode(value["content"]), large=False)
            elif item["key"] == "lfsFile":
                stored = self.hub.xet and xet_store.hash_of(self.hub.root, value["oid"]) is not None
                if not stored and not self.hub.state.blob(value["oid"]).exists():
                    return self.refuse(422, f"LFS pointer pointed to a file that does not exist: {value['path']}")
                files[value["path"]] = large_file(value["oid"], value["size"])
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        with repository.lock:
            parent = header.get("parentCommit")
            if parent and repository.refs[revision] != parent:
                return self.refuse(412, "the branch has moved")
            commit = repository.commit(revision, header["summary"], files)
        url = f"{self.hub.url}/{repository.id}/commit/{commit.oid}"
        self.send(200, {"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})

    def info(self, repository: Repository, commit: Commit) -> dict[str, Any]:
        files = []
        for path, file in sorted(commit.files.items()):
            entry: dict[str, Any] = {"rfilename": path}
            if self.query.get("blobs"):
                entry |= {"size": file.size, "blobId": file.oid}
                if file.lfs:
                    entry["lfs"] = {"sha256": file.lfs, "size": file.size, "pointerSize": file.pointer}
            files.append(entry)
        flags = {"private": repository.private, "gated": repository.gated, "disabled": False}
        return {"_id": "1", "id": repository.id, "sha": commit.oid, "siblings": files, "tags": [], **flags}

    def batch(self, name: str) -> None:
        if self.repository(name, write=True) is None:
            return
        answers = []
        for wanted in json.loads(self.body())["objects"]:
            answer: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"], "authenticated": True}
            if not self.hub.state.blob(wanted["oid"]).exists():
                upload = {"href": f"{self.hub.url}/_lfs/{wanted['oid']}", "header": {}}
                answer["actions"] = {"upload": upload, "verify": {"href": f"{self.hub.url}/_verify"}}
            answers.append(answer)
        kind = {"Content-Type": "application/vnd.git-lfs+json"}
        self.send(200, {"transfer": "basic", "objects": answers}, kind)

    def put(self, sha256: str) -> None:
        if hashlib.sha256(self.body()).hexdigest() != sha256:
            return self.refuse(400, "sha256 mismatch")
        self.hub.state.blob(sha256).write_bytes(self.body())
        self.send(200, {}, {"ETag": f'"{sha256}"'})

    def verify(self) -> None:
        wanted = json.loads(self.body())
        blob = self.hub.state.blob(wanted["oid"])
        right = blob.exists() and blob.stat().st_size == wanted["size"]
        self.send(200, {}) if right else self.refuse(404, "no such object")

    def resolve(self, name: str, revision: str, path: str) -> None:
        repository = self.repository(name)
        if repository is None:
            return
        if repository.gated:
            return self.refuse(403, f"Access to model {name} is restricted", "GatedRepo")
        commit = repository.resolve(revision)
        if commit is None:
            return self.unknown()
        file = commit.files.get(path)
        if file is None:
            return self.refuse(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit.oid})
        headers = {
            "X-Repo-Commit": commit.oid,
            "ETag": f'"{file.lfs or file.oid}"',
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if file.lfs:
            headers |= {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{file.lfs}"'}
            found = xet_store.hash_of(self.hub.root, file.lfs) if self.hub.xet else None
            if found:
                route = f"{self.hub.url}/api/models/{name}/xet-read-token/{commit.oid}"
                headers |= {"X-Xet-Hash": found, "X-Xet-Refresh-Route": route, "Link": f'<{route}>; rel="xet-auth"'}
        if self.command == "HEAD":
            return self.send(200, None, {**headers, "Content-Length": str(file.size)})
        data, status = self.hub.read(file), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            start, end = int(wanted[1]), min(int(wanted[2] or file.size), file.size - 1)
            if start >= file.size:
                return self.refuse(416, "no such range")
            data, status = data[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{end}/{file.size}"
        self.send(status, None, headers, data)


def _entry(path: str, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": file.size, "oid": file.oid}
    if file.lfs:
        entry["lfs"] = {"oid": file.lfs, "size": file.size, "pointerSize": file.pointer}
    return entry


def _card_problems(text: str) -> list[str]:
    """Some of what the Hub checks of a card's metadata."""
    found = re.match(r"---\n(.*?)^---", text, re.DOTALL | re.MULTILINE)
    try:
        metadata = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        return [str(error)]
    if not isinstance(metadata, dict):
        return ["the metadata is no mapping"]
    problems = []
    bases = metadata.get("base_model", [])
    for name in bases if isinstance(bases, list) else [bases]:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
            problems.append(f"base_model {name!r} is no repository")
    if metadata.get("base_model_relation") not in (None, "adapter", "merge", "quantized", "finetune"):
        problems.append("base_model_relation is unknown")
    if not all(isinstance(tag, str) for tag in metadata.get("tags", [])):
        problems.append("a tag is no text")
    return problems
