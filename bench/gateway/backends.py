"""The two backends: nginx with one fixed completion, and the streaming server."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.gateway.environments import ensure_debian
from bench.gateway.processes import ProcessGroup, free_port
from bench.gateway.stream_backend import COMPLETION

_COMMON = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {server}
}}
"""
_PLAIN = """
  default_type application/json;
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 '{completion}'; }} }}
"""
_PROXY = """
  upstream backend {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://backend;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
"""


def nginx_argv(folder: Path, server: str) -> list[str]:
    """The command of an nginx in the foreground whose files are all in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(_COMMON.format(folder=folder, server=server))
    return [ensure_debian("nginx"), "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]


def proxy_argv(folder: Path, port: int, upstream: int) -> list[str]:
    """nginx as a reverse proxy: the floor of what a gateway costs."""
    return nginx_argv(folder, _PROXY.format(port=port, upstream=upstream))


@contextmanager
def plain_backend(folder: Path) -> Iterator[int]:
    """The port of an nginx that answers everything with the same completion."""
    port = free_port()
    argv = nginx_argv(folder / "plain", _PLAIN.format(port=port, completion=COMPLETION.decode()))
    with _running(argv, folder / "plain.log", port):
        yield port


@contextmanager
def stream_backend(folder: Path) -> Iterator[int]:
    """The port of the streaming server."""
    port = free_port()
    argv = [sys.executable, "-m", "bench.gateway.stream_backend", "--port", str(port)]
    with _running(argv, folder / "streams.log", port):
        yield port


@contextmanager
def _running(argv: list[str], log: Path, port: int) -> Iterator[None]:
    group = ProcessGroup(log)
    try:
        group.start(argv)
        group.await_port(port)
        yield
    finally:
        group.end()
