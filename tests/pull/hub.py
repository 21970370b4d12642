"""A model hub for tests: the parts of the Hugging Face hub's interface that downloads use, and faults on request.

The endpoint answers the API and small files; large ones (LFS) it redirects to a second server on another port, by URLs
that are signed and can expire. `huggingface_hub` itself downloads from it (pull_test.py), which shows that it answers
like the hub in what that client reads.
"""

import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class File:
    def __init__(self, content, lfs):
        self.content, self.lfs = content, lfs
        self.sha256 = hashlib.sha256(content).hexdigest()
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (
            self.sha256.encode(), len(content))
        self.blob = git_sha1(pointer if lfs else content)
        self.etag = self.sha256 if lfs else self.blob
        self.pointer_size = len(pointer)

    def lfs_entry(self, key):
        return {"lfs": {key: self.sha256, "size": len(self.content), "pointerSize": self.pointer_size}} if self.lfs else {}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that ends, or is killed, in the middle of an answer


class Hub:
    """One repository. `files` maps paths to bytes; a file of at least `lfs_from` bytes is an LFS file."""

    def __init__(self, name, files, lfs_from=1024, commit=COMMIT, licence="apache-2.0", gated=False, token=None):
        self.name, self.commit, self.licence, self.gated, self.token = name, commit, licence, gated, token
        self.files = {path: File(content, len(content) >= lfs_from) for path, content in files.items()}
        self.refs = {"main": commit, commit: commit}
        self.requests = []      # (server, method, path, headers) of every request
        self.faults = []        # functions of a Handler that return true if they have answered
        self.plain_mirror = False   # no header that only the hub has, and no sizes in the list of files
        self.ranges = True
        self.expired = set()    # signatures
        self.signatures = 0
        self.listed = None      # replaces the list of files
        self.lock = threading.Lock()
        self.front = Server(self, Front)
        self.storage = Server(self, Storage)
        self.url = f"http://127.0.0.1:{self.front.server_port}"
        self.storage_url = f"http://localhost:{self.storage.server_port}"

    def close(self):
        for server in (self.front, self.storage):
            server.shutdown()
            server.server_close()

    def sign(self):
        with self.lock:
            self.signatures += 1
            return str(self.signatures)

    def info(self):
        siblings = [{"rfilename": path} if self.plain_mirror else
                    {"rfilename": path, "size": len(file.content), "blobId": file.blob, **file.lfs_entry("sha256")}
                    for path, file in self.files.items()]
        return {"_id": "0", "id": self.name, "modelId": self.name, "sha": self.commit, "private": False,
                "gated": self.gated, "disabled": False, "downloads": 1, "likes": 1, "tags": [f"license:{self.licence}"],
                "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
                "cardData": {"license": self.licence},
                "siblings": self.listed if self.listed is not None else siblings}

    def tree(self):
        folders = sorted({path.rsplit("/", 1)[0] for path in self.files if "/" in path})
        return [{"type": "directory", "path": folder, "oid": "0" * 40, "size": 0} for folder in folders] + [
            {"type": "file", "path": path, "oid": file.blob, "size": len(file.content), **file.lfs_entry("oid")}
            for path, file in self.files.items()]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.hub = self.server.hub
        with self.hub.lock:
            self.hub.requests.append((self.server_name, self.command, self.path, dict(self.headers)))
            faults = list(self.hub.faults)
        if not any(fault(self) for fault in faults):
            self.answer()

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply_error(self, status, code="", message=""):
        headers = {} if self.hub.plain_mirror else {"X_Error_Code": code, "X_Error_Message": message}
        self.reply(status, json.dumps({"error": message}).encode(), **headers)

    def reply_json(self, value):
        self.reply(200, json.dumps(value).encode(), Content_Type="application/json")

    def wanted_range(self, size):
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match or not self.hub.ranges:
            return None
        return int(match[1]), min(int(match[2] or size - 1), size - 1)

    def reply_content(self, file, **headers):
        """All of the file or the range that is wanted."""
        size = len(file.content)
        wanted = self.wanted_range(size)
        first, last = wanted or (0, size - 1)
        self.send_response(206 if wanted else 200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(memoryview(file.content)[first:last + 1])

    def send_body(self, body):
        self.wfile.write(body)


class Front(Handler):
    server_name = "front"

    def answer(self):
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path)
        hub = self.hub
        if path.startswith(f"/api/models/{hub.name}"):
            return self.answer_api(path.removeprefix(f"/api/models/{hub.name}"), query)
        if path.startswith(f"/{hub.name}/resolve/"):
            revision, _, name = path.removeprefix(f"/{hub.name}/resolve/").partition("/")
            return self.answer_file(revision, name)
        self.reply_error(401 if "authorization" not in self.headers else 404, "RepoNotFound", "Repository not found")

    def answer_api(self, path, query):
        if self.refuses_token():
            return
        parts = [part for part in path.split("/") if part]
        revision = "/".join(parts[1:]) if parts else "main"
        if revision not in self.hub.refs:
            return self.reply_error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        self.reply_json(self.hub.tree() if parts and parts[0] == "tree" else self.hub.info())

    def answer_file(self, revision, name):
        hub = self.hub
        if self.refuses_token():
            return
        if hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.reply_error(401 if "authorization" not in self.headers else 403, "GatedRepo",
                                    f"Access to model {hub.name} is restricted.")
        if revision not in hub.refs:
            return self.reply_error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if name not in hub.files:
            return self.reply_error(404, "EntryNotFound", "Entry not found")
        file = hub.files[name]
        headers = {"ETag": f'"{file.etag}"'}
        if not hub.plain_mirror:
            headers["X_Repo_Commit"] = hub.commit
            if file.lfs:
                headers["X_Linked_Size"] = str(len(file.content))
                headers["X_Linked_ETag"] = f'"{file.sha256}"'
        if not file.lfs:
            return self.reply_content(file, **headers)
        del headers["ETag"]
        location = f"{hub.storage_url}/{file.sha256}?signature={hub.sign()}"
        self.reply(302, b"Found. Redirecting", Location=location, **headers)

    def refuses_token(self):
        given = self.headers.get("Authorization")
        if given is None or self.hub.token is None or given == f"Bearer {self.hub.token}":
            return False
        self.reply_error(401, "", "Invalid credentials in Authorization header")
        return True


class Storage(Handler):
    server_name = "storage"

    def answer(self):
        path, _, query = self.path.partition("?")
        signature = urllib.parse.parse_qs(query).get("signature", [""])[0]
        if not signature or signature in self.hub.expired:
            return self.reply(403, b"<Error><Code>AccessDenied</Code></Error>", Content_Type="application/xml")
        for file in self.hub.files.values():
            if file.sha256 == path[1:]:
                return self.reply_content(file, ETag='"no digest"')
        self.reply(404)


# Faults. Each is a function of a Handler that returns true if it has answered.

def times(count, matches, act):
    """Calls `act` for the first `count` requests that match."""
    left = [count]
    lock = threading.Lock()

    def fault(handler):
        with lock:
            if left[0] == 0 or not matches(handler):
                return False
            left[0] -= 1
        return act(handler) is not False
    return fault


def in_storage(handler):
    return handler.server_name == "storage" and handler.command == "GET"


def cut_after(count):
    """Announces everything, sends `count` bytes and closes the connection."""
    def act(handler):
        def send(body):
            handler.wfile.write(body[:count])
            handler.close_connection = True
        handler.send_body = send
        return False
    return act


def stall_after(count, release):
    """Sends `count` bytes and then nothing until `release` is set."""
    def act(handler):
        def send(body):
            handler.wfile.write(body[:count])
            handler.wfile.flush()
            release.wait(60)
            handler.close_connection = True
        handler.send_body = send
        return False
    return act


def answer_with(status, **headers):
    return lambda handler: handler.reply(status, b"", **headers)
