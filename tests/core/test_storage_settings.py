"""One configuration for all clients: put, get, list, delete and PyIceberg's FileIO ask the same server in the same way.

The server says what it was asked. Where it stands for a proxy, names of hosts need not exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from tests.support.authority import Certificate, make_certificate
from tests.support.s3_servers import KEY, SECRET, free_port
from tests.support.slow_s3 import LOCKED, PLAIN, SlowS3, run_slow_s3
from trinitylake_core.errors import InvalidInput, OutcomeUnknown, StorageDenied, StorageError
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.options import file_io_properties
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.s3_options import S3Options
from trinitylake_core.storage.s3_settings import resolve

pytestmark = pytest.mark.s3

ROOT = "s3://lakes/of/settings/"
ELSEWHERE = "http://s3.example.test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowS3]:
    """A store of our own that writes down what it is asked."""
    with run_slow_s3(tmp_path_factory.mktemp("settings")) as running:
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of a private authority."""
    return make_certificate(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[SlowS3]:
    """The same store, by TLS with that certificate."""
    with run_slow_s3(tmp_path_factory.mktemp("tls"), certificate) as running:
        yield running


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's own settings."""
    for name in os.environ:
        if name.startswith("AWS_") or name.lower().endswith("_proxy") or name == "REQUESTS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def configure(tmp_path: Path, profile: str = "", credentials: bool = True) -> None:
    """Write the files of a person: a profile ``lake`` with these lines, and its keys."""
    (tmp_path / "config").write_text(f"[profile lake]\n{profile}\n")
    if credentials:
        keys = f"[lake]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
        (tmp_path / "credentials").write_text(keys)


def do_everything(server: SlowS3, options: dict[str, Any], root: str = ROOT) -> list[dict[str, str]]:
    """Put, get, list and delete a file, and write and read one by PyIceberg's FileIO; return what the server saw."""
    options = {"hedged_share": 0, "retries": 1, "retry_base_seconds": 0.01, **options}
    server.set()
    storage = open_storage(root, options)
    storage.write("file", b"content")
    assert b"content" == storage.read("file")
    assert ["file"] == [info.path for info in storage.list("file")]
    assert ["file"] == storage.delete_many(["file"]).deleted
    files = border.file_io(file_io_properties(root, storage.spec()[1]), f"{root}table")
    with files.new_output(f"{root}table").create(overwrite=True) as stream:
        stream.write(b"rows")
    with files.new_input(f"{root}table").open() as stream:
        assert b"rows" == stream.read()
    files.delete(f"{root}table")
    seen = server.requests_seen()
    assert {"PUT", "GET", "POST"} <= {each["method"] for each in seen}
    assert {"lakes"} == {each["bucket"] or each["host"].partition(".")[0] for each in seen}
    return seen


def values(seen: list[dict[str, str]], name: str) -> set[str]:
    """Return what the requests say about one thing."""
    return {each.get(name, "") for each in seen}


def signed_by(seen: list[dict[str, str]]) -> set[str]:
    """Return keys and regions that the requests are signed with."""
    found = set()
    for each in seen:
        scope = each.get("authorization", "").partition("Credential=")[2].split("/")
        found.add(f"{scope[0]} {scope[2]}" if len(scope) > 2 else "")
    return found


KEYS = {"key": KEY, "secret": SECRET}


def test_the_models_of_botocore_are_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bucket and each profile would read them again, and keep them."""
    resolve("one", S3Options.take(KEYS))
    read: list[str] = []
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: read.append(path))
    resolve("another", S3Options.take({**KEYS, "region": "eu-west-7"}))
    assert [] == read


def test_the_endpoint_of_the_options(server: SlowS3) -> None:
    seen = do_everything(server, {**KEYS, "endpoint_url": server.endpoint, "region": "eu-west-7"})
    assert {f"{KEY} eu-west-7"} == signed_by(seen)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_of_the_environment(server: SlowS3, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-7")
    assert {f"{KEY} eu-west-7"} == signed_by(do_everything(server, {}))


@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key", "token"])
def test_a_key_with_a_line_end_is_told(server: SlowS3, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It ended in the text of a panic: a header cannot hold it."""
    keys = {"access_key_id": KEY, "secret_access_key": SECRET, "token": "token"}
    variables = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for variable, (each, value) in zip(variables, keys.items(), strict=True):
        monkeypatch.setenv(variable, value + "\n" * (each == name))
    with pytest.raises(InvalidInput, match=rf"{name} has a blank or a line's end in it"):
        open_storage(ROOT, {"endpoint_url": server.endpoint}).read("file")


@pytest.mark.parametrize("style", ["", "s3 =\n  addressing_style = path"])
def test_endpoint_region_and_keys_of_a_profile(server: SlowS3, tmp_path: Path, style: str) -> None:
    """The first of them ended in a panic of Rust: the bucket stood before an address."""
    configure(tmp_path, f"endpoint_url = {server.endpoint}\nregion = eu-west-7\n{style}")
    assert {f"{KEY} eu-west-7"} == signed_by(do_everything(server, {"profile": "lake"}))


def test_the_profile_of_the_environment(server: SlowS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, f"endpoint_url = {server.endpoint}\nregion = eu-west-7")
    monkeypatch.setenv("AWS_PROFILE", "lake")
    assert {f"{KEY} eu-west-7"} == signed_by(do_everything(server, {}))


def test_a_program_that_gives_keys(server: SlowS3, tmp_path: Path) -> None:
    """Roles come in the same way: from a place that botocore asks, and with a token."""
    program = tmp_path / "keys"
    program.write_text(
        '#!/bin/sh\necho \'{"Version": 1, "AccessKeyId": "of-a-role", "SecretAccessKey": "s", "SessionToken": "t"}\'\n'
    )
    program.chmod(0o700)
    configure(tmp_path, f"endpoint_url = {server.endpoint}\ncredential_process = {program}", credentials=False)
    seen = do_everything(server, {"profile": "lake", "region": "eu-west-7"})
    assert {"of-a-role eu-west-7"} == signed_by(seen)
    assert {"t"} == values(seen, "x-amz-security-token")


@pytest.mark.parametrize(
    ("options", "profile", "host"),
    [
        ({"path_style": False}, "", "lakes.s3.example.test"),
        ({"path_style": True}, "", "s3.example.test"),
        ({}, "", "s3.example.test"),
        ({}, "s3 =\n  addressing_style = virtual", "lakes.s3.example.test"),
        ({"path_style": True}, "s3 =\n  addressing_style = virtual", "s3.example.test"),
    ],
)
def test_where_the_bucket_stands(
    server: SlowS3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    profile: str,
    host: str,
) -> None:
    configure(tmp_path, profile)
    monkeypatch.setenv("http_proxy", server.endpoint)
    seen = do_everything(server, {"profile": "lake", "endpoint_url": ELSEWHERE, "region": "eu-west-7", **options})
    assert {host} == values(seen, "host")


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "option"])
def test_a_proxy(server: SlowS3, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options: dict[str, Any] = {**KEYS, "endpoint_url": ELSEWHERE, "region": "eu-west-7"}
    if name == "option":
        options["config_kwargs"] = {"proxies": {"http": server.endpoint}}
    else:
        monkeypatch.setenv(name, server.endpoint)
    assert {"s3.example.test"} == values(do_everything(server, options), "host")


@pytest.mark.parametrize("excluded", ["127.0.0.1", "*"])
def test_a_server_without_a_proxy(server: SlowS3, monkeypatch: pytest.MonkeyPatch, excluded: str) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", excluded)
    do_everything(server, {**KEYS, "endpoint_url": server.endpoint, "region": "eu-west-7"})


def test_a_server_at_an_address_of_ipv6_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", ELSEWHERE)
    monkeypatch.setenv("no_proxy", "localhost,::1")
    assert resolve("lakes", S3Options.take({**KEYS, "endpoint_url": "http://[::1]:9000"})).proxy is None


@pytest.mark.parametrize("region", ["eu-west-7", "my_region"])
def test_names_of_a_server_and_a_region_with_an_underscore(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    """As services of Docker Compose have; botocore itself takes neither."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ELSEWHERE)
    settings = resolve("lakes", S3Options.take({**KEYS, "endpoint_url": "http://minio_1:9000", "region": region}))
    assert ("http://minio_1:9000", region, True) == (settings.endpoint, settings.region, settings.path_style)


@pytest.mark.parametrize("region", ["", "us-east-1"])
def test_the_first_region_has_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    """That for all regions is elsewhere: a private network may reach the own one only."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    settings = resolve("lakes", S3Options.take(KEYS))
    assert ("https://s3.us-east-1.amazonaws.com", "us-east-1", False) == (
        settings.endpoint,
        settings.region,
        settings.path_style,
    )


@pytest.mark.parametrize(
    "where", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "profile", "option", "unchecked"]
)
def test_the_authority(
    trusted: SlowS3, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """AWS_CA_BUNDLE counted for listings, and not for objects."""
    options: dict[str, Any] = {**KEYS, "endpoint_url": trusted.endpoint, "region": "eu-west-7"}
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if where.isupper():
        monkeypatch.setenv(where, str(certificate.authority))
    elif where == "profile":
        configure(tmp_path, f"ca_bundle = {certificate.authority}")
        options["profile"] = "lake"
    else:
        options["client_kwargs"] = {"verify": where == "option" and str(certificate.authority)}
    do_everything(trusted, options)


def test_an_unknown_authority_is_told_at_once(trusted: SlowS3) -> None:
    """It was called a lost connection, and tried again and again."""
    storage = open_storage(ROOT, {**KEYS, "endpoint_url": trusted.endpoint, "region": "eu-west-7", "retries": 9})
    for ask in (lambda: storage.read("file"), lambda: list(storage.list())):
        before = storage.counts.requests()
        with pytest.raises(StorageError, match=r"certificate of the server was not accepted.*AWS_CA_BUNDLE"):
            ask()
        assert 1 == storage.counts.requests() - before


def test_a_bucket_that_wants_checksums_gets_them(server: SlowS3) -> None:
    """As one with object lock does."""
    options = {**KEYS, "endpoint_url": server.endpoint, "region": "eu-west-7"}
    server.set(kind=LOCKED)
    try:
        storage = open_storage(ROOT, options)
        storage.create("locked", b"x")
        storage.write("written", b"x")
        do_everything(server, options)
    finally:
        server.set(kind=PLAIN)


def test_checksums_can_be_left_out(server: SlowS3) -> None:
    """For a store that does not know them; one that wants them says so then."""
    no_checksums = {"config_kwargs": {"request_checksum_calculation": "when_required"}}
    storage = open_storage(ROOT, {**KEYS, "endpoint_url": server.endpoint, "region": "eu-west-7", **no_checksums})
    server.set(kind=LOCKED)
    try:
        with pytest.raises(StorageError, match="InvalidRequest"):
            storage.write("other", b"x")
    finally:
        server.set(kind=PLAIN)


# What cannot be.


@pytest.mark.parametrize("endpoint", ["localhost:9000", "http://", "http://[::1", "ftp://host", "http://a b"])
def test_an_endpoint_that_is_no_url_is_told(endpoint: str) -> None:
    """Obstore ends in a panic of Rust there."""
    with pytest.raises(InvalidInput, match=r"is no URL of a server: write https://host.*AWS_ENDPOINT_URL"):
        open_storage(ROOT, {**KEYS, "endpoint_url": endpoint}).read("file")


def test_an_endpoint_of_the_environment_that_is_no_url_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(InvalidInput, match=r"settings of AWS cannot be used: .*localhost:9000"):
        open_storage(ROOT, KEYS).read("file")


def test_nothing_listens_there_is_no_unknown_outcome() -> None:
    """Nothing was sent."""
    options = {**KEYS, "endpoint_url": f"http://127.0.0.1:{free_port()}", "region": "x", "retries": 0}
    storage = open_storage(ROOT, options)
    with pytest.raises(StorageError, match="Nothing was sent") as refused:
        storage.create("root", b"x")
    assert not isinstance(refused.value, OutcomeUnknown)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("RequestTimeTooSkewed", "the clock of this machine"),
        ("SignatureDoesNotMatch", "the secret key is not that of the access key"),
        ("InvalidAccessKeyId", "does not know this access key"),
        ("ExpiredToken", "log in again"),
        ("AccessDenied", "without s3:ListBucket"),
    ],
)
def test_hints_fit_the_refusal(server: SlowS3, code: str, hint: str) -> None:
    storage = open_storage(ROOT, {**KEYS, "endpoint_url": server.endpoint, "region": "x"})
    server.set(refuse=code)
    try:
        with pytest.raises(StorageDenied, match=hint) as refused:
            storage.read("file")
    finally:
        server.set()
    assert ("ListBucket" in str(refused.value)) == (code == "AccessDenied")


def test_a_profile_that_is_not_there_is_told_with_who_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path)
    with pytest.raises(InvalidInput, match="no profile 'lak', which the storage option profile names, in"):
        open_storage(ROOT, {"profile": "lak"}).read("file")
    monkeypatch.setenv("AWS_PROFILE", "lak")
    with pytest.raises(InvalidInput, match="no profile 'lak', which AWS_PROFILE names, in"):
        open_storage(ROOT).read("file")


def test_a_profile_that_leads_nowhere_is_told_with_the_one_that_is_missing(tmp_path: Path) -> None:
    configure(tmp_path, "region = x\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base", credentials=False)
    with pytest.raises(InvalidInput, match=r"'lake' cannot be resolved: .*source.profile.*base"):
        open_storage(ROOT, {"profile": "lake"}).read("file")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile lake]\nregion = x\nthis is nothing\n")
    with pytest.raises(InvalidInput, match=r"a file of AWS settings cannot be read: .*config"):
        open_storage(ROOT, {"profile": "lake"}).read("file")


def test_a_file_of_certificates_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(InvalidInput, match=r"none.pem' cannot be read: No such file"):
        open_storage(ROOT, {**KEYS, "endpoint_url": "https://127.0.0.1:1"}).read("file")
