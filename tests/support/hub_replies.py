"""What the local hub answers, decided from its store alone; sending it is another module's part.

    /api/models/ORG/NAME[/revision/REV]            what the repository has at a revision
    /api/models/ORG/NAME/tree/REV[/FOLDER]         its files and folders, in pages
    /api/models/ORG/NAME/commits/REV               its history, newest first
    /ORG/NAME/resolve/REV/PATH                     a small file, or the way to a large one
    /cdn/ORG/NAME/SHA256/PATH                      a large file, on the other host name and without a token
    /api/models/ORG/NAME/xet-read-token/REV        access to xet storage, for a hub that offers it

As on the real hub, a large file is elsewhere: the client takes the commit and the checksum from the redirect and drops
its token. A 401 carries X-Error-Code here, since the client reads a bare one as "not found" only on https endpoints.
"""

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

import msgspec

from tests.support.hub_store import SHA256, HubFile, HubStore, Revision


@dataclass(frozen=True)
class HubRequest:
    """target is the request target as sent; host, byte_range and token come from Host, Range and Authorization."""

    method: str
    target: str
    host: str
    byte_range: str | None
    token: str | None
    accept_encoding: str = ""

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def segments(self) -> list[str]:
        """The parts of the path, each decoded on its own: a revision such as `refs/pr/1` comes as one."""
        return [unquote(part) for part in self.target.partition("?")[0].strip("/").split("/")]

    @property
    def query(self) -> dict[str, str]:
        return {key: values[-1] for key, values in parse_qs(self.target.partition("?")[2]).items()}


@dataclass(frozen=True)
class FileSlice:
    """length bytes of a file from start on."""

    path: Path
    start: int
    length: int


@dataclass(frozen=True)
class Reply:
    """Headers without Content-Length, which is the body's."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | FileSlice = b""


class RefusedError(Exception):
    """A request that the hub answers with an error; code is what the client tells its exceptions apart by."""

    def __init__(self, status: int, code: str | None, message: str, commit: str | None = None) -> None:
        super().__init__(message)
        headers = {"Content-Type": "application/json", "X-Error-Message": message}
        headers |= {"X-Error-Code": code} if code else {}
        headers |= {"X-Repo-Commit": commit} if commit else {}
        self.reply = Reply(status, headers, msgspec.json.encode({"error": message}))


def reply_to(store: HubStore, request: HubRequest, tree_page_size: int) -> Reply:
    try:
        match request.segments:
            case ["api", "models", org, name]:
                return _info(store, _open_repo(store, request, org, name), "main")
            case ["api", "models", org, name, "revision", revision]:
                return _info(store, _open_repo(store, request, org, name), revision)
            case ["api", "models", org, name, "tree", revision, *folder]:
                repo = _open_repo(store, request, org, name)
                return _tree(_revision(store, repo, revision), request, "/".join(folder), tree_page_size)
            case ["api", "models", org, name, "commits", revision]:
                repo = _open_repo(store, request, org, name)
                return _commits(store.history(repo, _revision(store, repo, revision)))
            case ["api", "models", org, name, "xet-read-token", _]:
                repo = _open_repo(store, request, org, name)
                _check_gate(store, request, repo)
                return _xet_access(store)
            case [org, name, "resolve", revision, *path] if path:
                repo = _open_repo(store, request, org, name)
                _check_gate(store, request, repo)
                return _resolve(store, request, repo, _revision(store, repo, revision), "/".join(path))
            case ["cdn", _, _, sha256, *_] if SHA256.fullmatch(sha256) and store.blob(sha256).is_file():
                return _content(store.blob(sha256), request.byte_range, {"ETag": f'"{sha256}"'})
        raise RefusedError(404, None, "Not Found")
    except RefusedError as refused:
        return refused.reply


def _open_repo(store: HubStore, request: HubRequest, org: str, name: str) -> str:
    """The repository's id if it exists and the caller may know of it."""
    repo = f"{org}/{name}"
    if not store.has_repo(repo):
        raise RefusedError(404, "RepoNotFound", "Repository not found")
    access = store.access(repo)
    if access.kind == "private" and request.token is None:
        raise RefusedError(401, "RepoNotFound", "Invalid username or password.")
    if access.kind == "private" and request.token not in access.tokens:
        raise RefusedError(401, None, "Invalid credentials in Authorization header")
    return repo


def _check_gate(store: HubStore, request: HubRequest, repo: str) -> None:
    access = store.access(repo)
    if access.kind == "gated" and request.token not in access.tokens:
        status = 401 if request.token is None else 403
        raise RefusedError(status, "GatedRepo", f"Access to model {repo} is restricted")


def _revision(store: HubStore, repo: str, name: str) -> Revision:
    revision = store.find_revision(repo, name)
    if revision is None:
        raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {name}")
    return revision


def _info(store: HubStore, repo: str, name: str) -> Reply:
    revision, access = _revision(store, repo, name), store.access(repo)
    siblings: list[dict[str, object]] = []
    for path, file in revision.files.items():
        sibling: dict[str, object] = {"rfilename": path, "size": file.size, "blobId": file.oid}
        if file.pointer_size is not None:
            sibling["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
        siblings.append(sibling)
    return _json(
        {
            "id": repo,
            "modelId": repo,
            "author": repo.partition("/")[0],
            "sha": revision.sha,
            "lastModified": revision.created,
            "private": access.kind == "private",
            "gated": "manual" if access.kind == "gated" else False,
            "disabled": False,
            "tags": [],
            "siblings": siblings,
        }
    )


def _tree(revision: Revision, request: HubRequest, folder: str, page_size: int) -> Reply:
    entries: dict[str, dict[str, object]] = {}
    prefix = f"{folder}/" if folder else ""
    recursive = request.query.get("recursive", "").lower() in ("true", "1")
    for path, file in revision.files.items():
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            parent = prefix + "/".join(parts[:depth])
            oid = hashlib.sha1(parent.encode()).hexdigest()
            entries.setdefault(parent, {"type": "directory", "oid": oid, "size": 0, "path": parent})
        if recursive or len(parts) == 1:
            entries[path] = _tree_entry(path, file)
    if folder and not entries:
        raise RefusedError(404, "EntryNotFound", f"{folder} does not exist on {revision.sha}", revision.sha)
    start = int(request.query.get("cursor", "0"))
    headers = {}
    if start + page_size < len(entries):
        url = f"http://{request.host}{quote(request.path)}?recursive={recursive}&cursor={start + page_size}"
        headers["Link"] = f'<{url}>; rel="next"'
    return _json(list(entries.values())[start : start + page_size], headers)


def _tree_entry(path: str, file: HubFile) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
    if file.pointer_size is not None:
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
    return entry


def _commits(revisions: list[Revision]) -> Reply:
    def commit(revision: Revision) -> dict[str, object]:
        title, _, message = revision.message.partition("\n")
        return {"id": revision.sha, "title": title, "message": message, "date": revision.created, "authors": []}

    return _json([commit(revision) for revision in revisions], {"X-Total-Count": str(len(revisions))})


def _resolve(store: HubStore, request: HubRequest, repo: str, revision: Revision, path: str) -> Reply:
    file = revision.files.get(path)
    if file is None:
        raise RefusedError(404, "EntryNotFound", f"{path} does not exist on {revision.sha}", revision.sha)
    headers = {"X-Repo-Commit": revision.sha, "ETag": f'"{file.etag}"'}
    if file.pointer_size is None:
        return _content(store.blob(file.sha256), request.byte_range, headers)
    host, _, port = request.host.partition(":")
    other_host = "127.0.0.1" if host == "localhost" else "localhost"
    if store.xet is not None:
        access = f"http://{request.host}/api/models/{repo}/xet-read-token/{revision.sha}"
        headers |= {"X-Xet-Hash": store.xet.hash_of(file.sha256, store.blob(file.sha256))}
        headers |= {"Link": f'<{access}>; rel="xet-auth"'}
    headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
    headers |= {"Location": f"http://{other_host}:{port}/cdn/{repo}/{file.sha256}/{quote(path)}"}
    return Reply(302, headers, f"Found. Redirecting to {headers['Location']}".encode())


def _xet_access(store: HubStore) -> Reply:
    """As the client reads it, from the headers, and as its library does, from the body."""
    if store.xet is None:
        raise RefusedError(404, None, "Not Found")
    url, token, ends = store.xet.endpoint, store.xet.access_token, int(time.time()) + 900
    headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(ends)}
    return _json({"casUrl": url, "accessToken": token, "exp": ends}, headers)


def _content(blob: Path, byte_range: str | None, headers: dict[str, str]) -> Reply:
    """A file, or the one range of it that was asked for; several ranges at once are answered with all of it."""
    size = blob.stat().st_size
    headers = {**headers, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    asked = re.fullmatch(r"\s*bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*", byte_range or "")
    if asked is None or not (asked[1] or asked[2]):
        return Reply(200, headers, FileSlice(blob, 0, size))
    if asked[1]:
        start, end = int(asked[1]), min(int(asked[2] or size), size - 1)
    else:
        start, end = max(size - int(asked[2]), 0), size - 1
    if start > end:
        return Reply(416, {**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Reply(206, headers, FileSlice(blob, start, end - start + 1))


def _json(value: object, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(200, {"Content-Type": "application/json", **(headers or {})}, msgspec.json.encode(value))
