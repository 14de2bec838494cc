"""An issuer of tokens (OIDC) with keys of its own, on a port of this machine, which can be away, hang or lie."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE: Final = "lakehouse"
CLIENTS: Final = {"etl-client": "etl-secret", "reader-client": "reader-secret"}
"""Who gets tokens by their credentials."""


class Issuer:
    """What it signs with, and what it answers.

    Attributes:
        keys: private keys by their names; it publishes the public ones.
        answer: what it says instead of its keys, as a whole HTTP answer.
        released: while it is not set, nothing is said about keys.
        asked: how often it was asked for keys, and for tokens.
    """

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"rsa": new_rsa_key(), "ec": ec.generate_private_key(ec.SECP256R1())}
        self.uri = ""
        self.answer: bytes | None = None
        self.released = threading.Event()
        self.released.set()
        self.asked = {"keys": 0, "tokens": 0}

    @property
    def jwks(self) -> str:
        """Where the keys are."""
        return f"{self.uri}/jwks"

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of a good token; a claim that is changed to ``None`` is left out."""
        now = int(time.time())
        good = {"iss": self.uri, "aud": AUDIENCE, "sub": "etl-client", "iat": now, "nbf": now, "exp": now + 600}
        return {name: value for name, value in (good | changed).items() if value is not None}

    def token(self, key: str = "rsa", **changed: Any) -> str:
        """Return a token that one of the keys has signed."""
        private = self.keys[key]
        algorithm = "RS256" if isinstance(private, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(self.claims(**changed), private, algorithm, {"kid": key})

    def published(self) -> dict[str, Any]:
        """Return the set of public keys."""
        return {"keys": [public_jwk(name, key) for name, key in self.keys.items()]}


def new_rsa_key() -> rsa.RSAPrivateKey:
    """Return a new key."""
    return rsa.generate_private_key(65537, 2048)


def public_jwk(name: str, key: Any) -> dict[str, Any]:
    """Return the public half of a key as an issuer publishes it."""
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    named = {"kid": name, "use": "sig", "alg": "RS256" if algorithm is RSAAlgorithm else "ES256"}
    return json.loads(algorithm.to_jwk(key.public_key())) | named  # type: ignore[no-any-return]


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """Run an issuer while the block runs."""
    issuer = Issuer()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked["keys"] += 1
            issuer.released.wait(60)
            if issuer.answer is None:
                self._say(200, issuer.published())
            else:
                self.wfile.write(issuer.answer)

        def do_POST(self) -> None:
            issuer.asked["tokens"] += 1
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            given = form.get("client_id", [""])[0], form.get("client_secret", [""])[0]
            if (self.headers.get("authorization") or "").startswith("Basic "):
                given = base64.b64decode(self.headers["authorization"][6:]).decode().split(":", 1)  # type: ignore[assignment]
            name, secret = given
            if CLIENTS.get(name) != secret:
                self._say(401, {"error": "invalid_client"})
                return
            token = issuer.token(sub=name)
            self._say(200, {"access_token": token, "token_type": "bearer", "expires_in": 600})

        def _say(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        issuer.uri = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield issuer
        finally:
            issuer.released.set()
            server.shutdown()
            thread.join()
