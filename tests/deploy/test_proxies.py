"""`deploy/caddy` and `deploy/nginx`: the examples are valid, and let through what nodes need."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.files import DEPLOY

_CADDY: Final = DEPLOY / "caddy" / "Caddyfile"
_NGINX: Final = DEPLOY / "nginx" / "vox-mesh.conf"
_TIMEOUT_S: Final = 30
_OPENSSL: Final = ("openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=example.com")


def _statements(path: Path) -> list[str]:
    """The lines that say something; blocks are balanced."""
    lines = [line.split(" #")[0].strip() for line in path.read_text().splitlines()]
    said = [line for line in lines if line and not line.startswith("#")]
    depth = 0
    for line in said:
        depth += line.endswith("{") - (line == "}")
        assert depth >= 0, line
    assert depth == 0
    return said


def test_the_examples_pass_on_streams_without_holding_them_back() -> None:
    caddy = _statements(_CADDY)
    assert caddy.count("flush_interval -1") == 2
    assert {line for line in caddy if line.startswith("reverse_proxy")} == {
        "reverse_proxy 127.0.0.1:8080 {",
        "reverse_proxy 127.0.0.1:7400 {",
    }
    nginx = _statements(_NGINX)
    assert all(re.search(r"[;{}]$", line) for line in nginx)
    assert nginx.count("proxy_buffering off;") == nginx.count("proxy_http_version 1.1;") == 2
    assert "proxy_set_header Upgrade $http_upgrade;" in nginx


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed")
def test_caddy_takes_its_example() -> None:
    command = ["caddy", "adapt", "--validate", "--adapter", "caddyfile", "--config", str(_CADDY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(None in (shutil.which("nginx"), shutil.which("openssl")), reason="nginx is not installed")
def test_nginx_takes_its_example(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run([*_OPENSSL, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    text = re.sub(r"/etc/\S+/fullchain.pem", str(certificate), _NGINX.read_text())
    (tmp_path / "example.conf").write_text(re.sub(r"/etc/\S+/privkey.pem", str(key), text))
    whole = f"events {{}} pid {tmp_path}/pid; http {{ include {tmp_path}/example.conf; }}"
    (tmp_path / "nginx.conf").write_text(whole)
    command = [
        "nginx",
        "-t",
        *map(str, ("-p", tmp_path, "-e", tmp_path / "errors", "-c", tmp_path / "nginx.conf")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert "syntax is ok" in done.stderr  # whether its folders exist is another question
