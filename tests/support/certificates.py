"""Certificates of this machine, for TLS on 127.0.0.1."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(directory: Path) -> Path:
    """Return a new certificate for localhost and 127.0.0.1; ``key.pem`` beside it is its key."""
    made = directory / "cert.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    more = ["-addext", names, "-out", str(made), "-keyout", str(directory / "key.pem")]
    subprocess.run(["openssl", *words.split(), *more], check=True, capture_output=True)
    return made
