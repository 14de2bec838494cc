"""Tokens of an issuer name who asks, and wrong ones are refused while the endpoint goes on."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from tests.core.test_rest import Client
from tests.support.engines import connected
from tests.support.issuer import AUDIENCE, CLIENTS, Issuer, new_rsa_key, public_jwk, running_issuer
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest import Limits, Principals, Served, Warehouses, application, issuers
from trinitylake_core.rest.principals import hash_token
from trinitylake_core.rest.serving import running

_NAMESPACES: Final = "/v1/lake/namespaces"
_OTHER_KEY: Final = new_rsa_key()
_PRINCIPALS: Final = f"""
principals:
  etl: {{subjects: {{corp: [etl-client]}}, manage: [sales, "sales.*"]}}
  analysts: {{groups: {{corp: [analysts, staff]}}, read: ["*"]}}
  stewards: {{groups: {{corp: [stewards]}}, write: ["sales.*"]}}
  old: {{token_sha256: {hash_token("static")}, read: ["*"]}}
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running_issuer() as found:
        yield found


@pytest.fixture(autouse=True)
def _sound(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "issuer" in request.fixturenames:
        found: Issuer = request.getfixturevalue("issuer")
        found.answer = None
        found.released.set()
        found.asked = {"keys": 0, "tokens": 0}


def _rights(issuer: Issuer, principals: str = _PRINCIPALS) -> str:
    known = {"issuer": issuer.uri, "audience": AUDIENCE, "jwks": issuer.jwks}
    return f"issuers: {json.dumps({'corp': known})}\n{principals}"


@contextmanager
def _served(lake: Lakehouse, directory: Path, text: str) -> Iterator[str]:
    path = directory / "tokens.yaml"
    path.write_text(text, encoding="utf-8")
    app = application(Warehouses({"lake": lambda: lake}), Principals.of_file(path), Limits(wrong_token_seconds=0))
    with running(app) as uri:
        yield uri


def test_a_token_of_an_issuer_names_who_asks(lake: Lakehouse, tmp_path: Path, issuer: Issuer) -> None:
    """By its subject or its groups, with the rights of all of them; static tokens stay. Keys are read once."""
    with _served(lake, tmp_path, _rights(issuer)) as uri:

        def ask(token: str, method: str = "GET", path: str = _NAMESPACES, body: Any = None) -> int:
            return Client(uri, token)(method, path, body).status

        assert 200 == ask(issuer.token("ec"), "POST", body={"namespace": ["sales"]})
        assert "etl" == lake.refresh().info().summary["author"]
        assert 403 == ask(issuer.token(), "POST", body={"namespace": ["hr"]})
        alice = issuer.token(sub="alice", groups=["analysts", "stewards", "others", 5])
        assert 200 == ask(alice, path=f"{_NAMESPACES}/sales")
        assert 403 == ask(alice, "POST", body={"namespace": ["sales"]})
        assert 404 == ask(alice, "POST", f"{_NAMESPACES}/sales/tables/t", {"requirements": [], "updates": []})
        assert 200 == ask(issuer.token(sub="bob", groups="staff"), path=f"{_NAMESPACES}/sales")
        assert 200 == ask("static", path=f"{_NAMESPACES}/sales")
        stranger = Client(uri, issuer.token(sub="eve", groups=["others"]))("GET", _NAMESPACES)
        assert (403, True) == (stranger.status, "'eve'" in stranger.text)
        assert 1 == issuer.asked["keys"]


def _unsigned(issuer: Issuer, **header: Any) -> str:
    parts = ({"alg": "none", "typ": "JWT", "kid": "rsa", **header}, issuer.claims())
    return ".".join([*(_encode(json.dumps(each).encode()) for each in parts), ""])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _by_public_key(issuer: Issuer, key: bytes) -> str:
    """Return a token whose signature is that of a secret which everybody knows; PyJWT would not make it."""
    import hashlib
    import hmac

    front = _encode(b'{"alg":"HS256","kid":"rsa"}') + "." + _encode(json.dumps(issuer.claims()).encode())
    return f"{front}.{_encode(hmac.new(key, front.encode(), hashlib.sha256).digest())}"


def _public_pem(issuer: Issuer) -> bytes:
    found: bytes = issuer.keys["rsa"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def _with_front(issuer: Issuer, header: bytes) -> str:
    return ".".join([_encode(header), *issuer.token().split(".")[1:]])


def _signed(issuer: Issuer, key: Any, algorithm: str = "RS256", **header: Any) -> str:
    return jwt.encode(issuer.claims(), key, algorithm, header)


def _changed(token: str) -> str:
    front, claims, signature = token.split(".")
    text = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)).replace(b"etl-client", b"root-clien")
    return f"{front}.{_encode(text)}.{signature}"


_WRONG: Final[dict[str, Callable[[Issuer], str]]] = {
    "expired": lambda i: i.token(exp=1_700_000_000),
    "not yet valid": lambda i: i.token(nbf=4_000_000_000),
    "issued in the future": lambda i: i.token(iat=4_000_000_000),
    "other audience": lambda i: i.token(aud="payroll"),
    "other audiences": lambda i: i.token(aud=["payroll", "lakehouse2"]),
    "no audience": lambda i: i.token(aud=None),
    "audience is a number": lambda i: i.token(aud=5),
    "other issuer": lambda i: i.token(iss="https://evil.example"),
    "no issuer": lambda i: i.token(iss=None),
    "no expiry": lambda i: i.token(exp=None),
    "expiry is no number": lambda i: i.token(exp="tomorrow"),
    "expiry without end": lambda i: i.token(exp=float("inf")),
    "no subject": lambda i: i.token(sub=None),
    "subject is a number": lambda i: i.token(sub=7),
    "subject is empty": lambda i: i.token(sub=""),
    "subject with a line end": lambda i: i.token(sub="etl\n-client"),
    "subject without end": lambda i: i.token(sub="x" * 10_000),
    "no algorithm": _unsigned,
    "no algorithm in other letters": lambda i: _unsigned(i, alg="nOnE"),
    "algorithm is a list": lambda i: _with_front(i, b'{"alg":["RS256"],"kid":"rsa"}'),
    "the public key is the secret": lambda i: _by_public_key(i, _public_pem(i)),
    "the published key is the secret": lambda i: _by_public_key(
        i, json.dumps(public_jwk("rsa", i.keys["rsa"])).encode()
    ),
    "nothing is the secret": lambda i: _by_public_key(i, b""),
    "another key": lambda i: _signed(i, _OTHER_KEY, kid="rsa"),
    "another key with its name": lambda i: _signed(i, _OTHER_KEY, kid="other"),
    "a key in the token": lambda i: _signed(i, _OTHER_KEY, kid="rsa", jwk=public_jwk("rsa", _OTHER_KEY)),
    "a key elsewhere": lambda i: _signed(i, _OTHER_KEY, kid="rsa", jku="https://evil.example/jwks"),
    "no name of a key": lambda i: _signed(i, i.keys["rsa"]),
    "name of a key is a number": lambda i: _with_front(i, b'{"alg":"RS256","kid":1}'),
    "name of a key is a path": lambda i: _signed(i, _OTHER_KEY, kid="../../../dev/null"),
    "other algorithm of the key": lambda i: _signed(i, i.keys["rsa"], "PS256", kid="rsa"),
    "other hash of the key": lambda i: _signed(i, i.keys["rsa"], "RS512", kid="rsa"),
    "unknown critical header": lambda i: _signed(i, i.keys["rsa"], kid="rsa", crit=["x"], x=1),
    "signature is cut": lambda i: i.token()[:-20],
    "signature of zeros": lambda i: i.token("ec").rpartition(".")[0] + "." + _encode(bytes(64)),
    "no signature": lambda i: i.token().rpartition(".")[0] + ".",
    "other claims": lambda i: _changed(i.token()),
    "five parts": lambda i: f"{i.token()}.x.y",
    "lists in lists": lambda i: _with_front(i, b"[" * 20_000),
    "claims are a list": lambda i: ".".join([i.token().split(".")[0], _encode(b"[]"), i.token().split(".")[2]]),
    "no base64": lambda i: "a.b.c",
    "longer than a header": lambda i: i.token(more="x" * 7000),
    "claims are a bomb": lambda i: ".".join([i.token().split(".")[0], _encode(b"[" * 20_000), "x"]),
}


def test_wrong_tokens_are_refused_and_the_endpoint_goes_on(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    """However many there are, the issuer is asked for its keys twice: in the beginning, and once for other names.

    Until it is asked again, nobody can tell whether one of those is new.
    """
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        found = {}
        for what, make in _WRONG.items():
            answer = Client(uri, make(issuer))("GET", _NAMESPACES)
            found[what] = answer.status
            words = answer.text
            assert not any(each in words for each in ("evil", "payroll", "x" * 300)), words
        unknown = {found.pop(what) for what in ("another key with its name", "name of a key is a path")}
        assert ({401}, {503}) == (set(found.values()), unknown - {401}), found
        assert 200 == Client(uri, issuer.token())("GET", _NAMESPACES).status
        assert issuer.asked["keys"] <= 2
        assert [] == [each.getMessage() for each in caplog.records if each.levelname in {"ERROR", "WARNING"}]


def test_the_waits_before_a_wrong_token_is_refused_leave_time_to_say_so_within_a_second() -> None:
    """One is for guesses, the other for an issuer that hangs; they do not add up."""
    assert max(Limits().wrong_token_seconds, issuers._WAIT_SECONDS) <= 0.8


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": 1_700_000_000}, "has expired: ask its issuer"),
        ({"nbf": 4_000_000_000}, "is not valid yet"),
        ({"aud": "payroll"}, "is for another audience"),
        ({"sub": None}, "has no claim 'sub'"),
    ],
)
def test_what_is_wrong_with_a_token_learns_who_has_one_of_the_issuer(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, changed: dict[str, Any], reason: str
) -> None:
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        assert reason in Client(uri, issuer.token(**changed))("GET", _NAMESPACES).text
        forged = jwt.encode(issuer.claims(**changed), _OTHER_KEY, "RS256", {"kid": "rsa"})
        assert "is not known to this endpoint" in Client(uri, forged)("GET", _NAMESPACES).text


def test_an_issuer_that_hangs_stops_nobody_else(lake: Lakehouse, tmp_path: Path, issuer: Issuer) -> None:
    """The answers come while it still hangs: for a token of it, too."""
    issuer.released.clear()
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        for _ in range(2):
            answer = Client(uri, issuer.token())("GET", _NAMESPACES)
            assert (503, "1") == (answer.status, answer.headers["retry-after"])
            assert 200 == Client(uri, "static")("GET", _NAMESPACES).status
        assert not issuer.released.is_set()
        assert 1 == issuer.asked["keys"]


_JSON: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_LIES: Final = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.9\r\n",
    "an error": b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
    "another place": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "a page": _JSON + b"content-length: 6\r\n\r\n<html>",
    "a list": _JSON + b"content-length: 2\r\n\r\n[]",
    "an empty object": _JSON + b"content-length: 2\r\n\r\n{}",
    "keys are a number": _JSON + b"content-length: 10\r\n\r\n" + b'{"keys":5}',
    "half of it": _JSON + b"content-length: 100\r\n\r\n" + b'{"keys":',
    "too much": _JSON + b"content-length: 900000\r\n\r\n" + b" " * 900_000,
    "too many headers": _JSON + b"x: y\r\n" * 50_000,
    "lists in lists": _JSON + b"content-length: 200000\r\n\r\n" + b"[" * 200_000,
    "no text": _JSON + b"content-length: 2\r\n\r\n\xff\xfe",
}


def _set_of(*keys: Any) -> bytes:
    body = json.dumps({"keys": keys}).encode()
    return _JSON + f"content-length: {len(body)}\r\n\r\n".encode() + body


_SECRET_KEY: Final = {"kty": "oct", "kid": "rsa", "k": "c2VjcmV0", "alg": "HS256"}
_NO_KEYS: Final = [
    1,
    None,
    {},
    {"kty": []},
    {"kty": "RSA", "kid": "rsa"},
    {"kty": "RSA", "kid": "rsa", "n": 5, "e": []},
]


_LIES["a secret key"] = _set_of(_SECRET_KEY)
_LIES["a private key"] = _set_of(json.loads(RSAAlgorithm.to_jwk(_OTHER_KEY)) | {"kid": "rsa"})
_LIES["a key that is too short"] = _set_of({"kty": "RSA", "kid": "rsa", "n": _encode(b"\xff" * 128), "e": "AQAB"})
_LIES["crumbs"] = _JSON + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 5000
_LIES["crumbs"] += b'b\r\n{"keys":[]}\r\n0\r\n\r\n'
_LIES["go on without end"] = b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + _set_of()
_LIES["no keys at all"] = _set_of(*_NO_KEYS)


@pytest.mark.parametrize("lie", _LIES)
def test_an_issuer_that_lies_is_not_believed(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its keys were read once nobody gets in by its tokens; after that the keys of before stay good."""
    monkeypatch.setattr(issuers, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(issuers, "_FRESH_SECONDS", 0.0)
    issuer.answer = _LIES[lie]
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        good = Client(uri, issuer.token())
        assert 503 == good("GET", _NAMESPACES).status
        assert 200 == Client(uri, "static")("GET", _NAMESPACES).status
        issuer.answer = None
        assert 200 == good("GET", _NAMESPACES).status
        issuer.answer = _LIES[lie]
        assert [200] * 3 == [good("GET", _NAMESPACES).status for _ in range(3)]
        assert 503 == Client(uri, _signed(issuer, _OTHER_KEY, kid="other"))("GET", _NAMESPACES).status


def test_a_new_key_counts_at_once_and_a_withdrawn_one_no_more(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "_PAUSE_SECONDS", 0.0)
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        issuer.keys["before"] = new_rsa_key()
        before = Client(uri, issuer.token("before"))
        assert 200 == before("GET", _NAMESPACES).status
        issuer.keys["next"] = issuer.keys.pop("before")
        assert 200 == Client(uri, issuer.token("next"))("GET", _NAMESPACES).status
        assert 401 == before("GET", _NAMESPACES).status
        del issuer.keys["next"]


def test_a_new_key_is_not_refused_while_others_are_asked_for(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of tokens with unknown keys uses up the turns to read them: a client shall try again."""
    monkeypatch.setattr(issuers, "_PAUSE_SECONDS", 3600.0)
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        assert 200 == Client(uri, issuer.token())("GET", _NAMESPACES).status
        issuer.keys["late"] = new_rsa_key()
        for token in (_signed(issuer, _OTHER_KEY, kid="other"), issuer.token("late")):
            answer = Client(uri, token)("GET", _NAMESPACES)
            assert (503, "1") == (answer.status, answer.headers["retry-after"])
        del issuer.keys["late"]


def test_an_rsa_key_without_an_algorithm_is_good_for_those_of_rsa(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer
) -> None:
    """Such keys are what some issuers publish. The key of a curve has one algorithm by its curve."""
    found = issuer.published()["keys"]
    for each in found:
        del each["alg"]
    issuer.answer = _set_of(*found)
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        for algorithm, status in {"RS256": 200, "RS512": 200, "PS384": 200, "HS256": 401}.items():
            secret = issuer.keys["rsa"] if status == 200 else b"x" * 32
            token = _signed(issuer, secret, algorithm, kid="rsa")
            assert status == Client(uri, token)("GET", _NAMESPACES).status, algorithm
        assert 200 == Client(uri, issuer.token("ec"))("GET", _NAMESPACES).status


def test_no_log_has_what_follows_the_path_of_the_uri_of_keys(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.answer = b"HTTP/1.1 500 No\r\n\r\n"
    text = _rights(issuer).replace("/jwks", "/jwks?code=hidden")
    with _served(lake, tmp_path, text) as uri:
        assert 503 == Client(uri, issuer.token())("GET", _NAMESPACES).status
    assert "/jwks cannot be read" in caplog.text
    assert "hidden" not in caplog.text


def test_an_issuer_that_withdraws_all_of_its_keys_is_believed(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It publishes an empty list: its tokens are refused until it has keys again."""
    monkeypatch.setattr(issuers, "_PAUSE_SECONDS", 0.0)
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        token = Client(uri, issuer.token())
        assert 200 == token("GET", _NAMESPACES).status
        issuer.answer = _set_of()
        assert 401 == Client(uri, _signed(issuer, _OTHER_KEY, kid="other"))("GET", _NAMESPACES).status  # it reads them
        assert 401 == token("GET", _NAMESPACES).status
        issuer.answer = None
        assert 200 == token("GET", _NAMESPACES).status


def test_keys_that_cannot_be_read_again_are_good_for_a_while(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        token = issuer.token()
        assert 200 == Client(uri, token)("GET", _NAMESPACES).status
    monkeypatch.setattr(issuers, "_KEPT_SECONDS", 0.0)
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        assert 503 == Client(uri, token)("GET", _NAMESPACES).status


def test_the_file_may_take_an_issuer_away_and_keeps_the_keys_of_one_that_stays(
    lake: Lakehouse, tmp_path: Path, issuer: Issuer
) -> None:
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        client = Client(uri, issuer.token())
        assert 200 == client("GET", _NAMESPACES).status
        path = tmp_path / "tokens.yaml"
        path.write_text(_rights(issuer) + "\n# changed\n", encoding="utf-8")
        assert (200, 1) == (client("GET", _NAMESPACES).status, issuer.asked["keys"])
        path.write_text(f"principals: {{old: {{token_sha256: {hash_token('static')}, read: ['*']}}}}", encoding="utf-8")
        assert [401, 200] == [Client(uri, each)("GET", _NAMESPACES).status for each in (client.token, "static")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("issuers: {}\nprincipals:\n  a: {subjects: {corp: [x]}}", "line 3: a: there is no issuer 'corp'"),
        ("issuers: [x]\nprincipals: {}", "issuers: it is no mapping"),
        ("principals: {}\nissuers:\n  c: {issuer: x, audience: y}", "line 3: c.jwks: it is missing"),
        (
            "principals: {}\nissuers:\n  c:\n    issuer: x\n    audience: y\n    jwks: 5",
            r"6: c\.jwks: it is no text",
        ),
        (
            "principals: {}\nissuers:\n  c: {issuer: x, audience: y, jwks: 'https://x/', kid: 1}",
            "c.kid: there is",
        ),
        ("principals: {}\nissuers:\n  c: {issuer: x, audience: y, jwks: 'http://x/'}", "line 3: .* is not https"),
        ("principals: {}\nissuers:\n  c: {issuer: x, audience: y, jwks: 'file:///x'}", "is not https"),
        ("principals: {}\nissuers:\n  c: {issuer: x, audience: y, jwks: 'https://x:y/'}", "is not a URI"),
        (
            "principals: {}\nissuers:\n  c: {issuer: x, audience: y, jwks: 'https://me:pw@x/'}",
            "c.jwks: the URI holds",
        ),
        (
            "ISSUERS\n  b: {issuer: x, audience: y, jwks: 'https://x/'}\nprincipals: {}",
            "line 3: there are two issuers x",
        ),
        ("principals: {}\nissuers:\n  1: {issuer: x, audience: y, jwks: 'https://x/'}", "line 3: 1: it is no text"),
        ("principals: {a: {token_sha256: !!timestamp x}}", "a value is not what its tag says"),
        ("principals: {a: {token_sha256: !!bool x}}", "a value is not what its tag says"),
        ("principals:\n  a: {token_sha256: 1?1}", "line 2: a.token_sha256: it is not a SHA-256"),
        ('principals:\n  a: {token_sha256: "\\ud800"}', "line 2: a.token_sha256: it is not a SHA-256"),
        ("ISSUERS\nprincipals: {a: {subjects: [x]}}", r"a\.subjects: it is no mapping"),
        ("ISSUERS\nprincipals: {a: {groups: {c: []}}}", r"a\.groups\.c: List should have at least 1 item"),
        ("ISSUERS\nprincipals: {a: {groups: {c: g}}}", r"a\.groups\.c: it is no list"),
        (
            "ISSUERS\nprincipals:\n  a: {subjects: {c: [x]}}\n  b: {subjects: {c: [x]}}",
            "line 5: b has the subject of a",
        ),
        ("ISSUERS\nprincipals: {a: {read: [x]}}", "a: it has no token_sha256"),
        (
            "ISSUERS\n  'b:c': {issuer: z, audience: y, jwks: 'https://x/'}\nprincipals: {}",
            "3: b:c: it has a colon",
        ),
        ("ISSUERS\nprincipals:\n  'c:x': {subjects: {c: [x]}}", "line 4: 'c:x' begins like the name of a subject of c"),
    ],
)
def test_a_file_with_issuers_is_strict(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "tokens.yaml"
    sound = "issuers:\n  c: {issuer: x, audience: y, jwks: 'https://x/'}"
    path.write_text(text.replace("ISSUERS", sound), encoding="utf-8")
    with pytest.raises(InvalidInput, match=problem):
        Principals.of_file(path)


def test_a_right_of_a_group_names_a_lakehouse_that_is_served(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    sound = "issuers:\n  c: {issuer: x, audience: y, jwks: 'https://x/'}"
    path.write_text(f"{sound}\nprincipals:\n  a: {{groups: {{c: [g]}}, read: [x]}}", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"line 4: a\.read names no lakehouse"):
        Principals.of_file(path).bind_rights(["one", "two"])


def test_engines_get_tokens_by_their_own_settings(lake: Lakehouse, tmp_path: Path, issuer: Issuer) -> None:
    """PyIceberg in both of its ways, and DuckDB: each asks the issuer by its credentials."""
    from pyiceberg.catalog import load_catalog

    name, secret = "etl-client", CLIENTS["etl-client"]
    at_issuer = f"{issuer.uri}/token"
    manager = {"type": "oauth2", "oauth2": {"client_id": name, "client_secret": secret, "token_url": at_issuer}}
    ways: list[dict[str, Any]] = [
        {"credential": f"{name}:{secret}", "oauth2-server-uri": at_issuer},
        {"auth": manager},
    ]
    with _served(lake, tmp_path, _rights(issuer)) as uri:
        for number, way in enumerate(ways):
            catalog = load_catalog("lake", type="rest", uri=uri, warehouse="lake", **way)
            catalog.create_namespace_if_not_exists("sales")
            catalog.create_namespace(f"sales.n{number}")
        given = f"CLIENT_ID '{name}', CLIENT_SECRET '{secret}', OAUTH2_SERVER_URI '{at_issuer}'"
        with connected(Served(uri, "", "lake"), secret=given) as connection:
            connection.execute("CREATE TABLE l.sales.t AS SELECT 1 AS x")
            assert [(1,)] == connection.execute("SELECT x FROM l.sales.t").fetchall()
    assert ["t"] == lake.refresh().tables("sales")
    assert "etl" == lake.info().summary["author"]
    assert issuer.asked["tokens"] >= 3
