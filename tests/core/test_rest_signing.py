"""Requests to S3 are signed for files of one table: a client without keys reads and adds these, and nothing else."""

from __future__ import annotations

import functools
from typing import Final

import pytest

from trinitylake_core.errors import OutsidePlaces
from trinitylake_core.rest.signing import RequestSigner, find_signer
from trinitylake_core.storage.s3 import S3Storage

_SERVER: Final = "http://store.example:9000"
_OWN: Final = "prod/tables/a/t-0123456789ab"
_METADATA: Final = f"s3://lakes/{_OWN}/metadata/00000-1.metadata.json"
_TABLE: Final = ("a", "t")
_FILE: Final = f"/lakes/{_OWN}/data/x%20y.parquet"


@functools.cache
def _signer(**options: str) -> RequestSigner:
    given = {"key": "k3y", "secret": "s3cret", "endpoint_url": _SERVER, "region": "eu-central-1"}
    signer = RequestSigner(S3Storage("s3://lakes/prod/", given | options))
    signer.admit_table(_TABLE, _METADATA)
    return signer


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("GET", ""),
        ("HEAD", ""),
        ("PUT", ""),
        ("PUT", "?partNumber=1&uploadId=u"),
        ("POST", "?uploads"),
        ("POST", "?uploadId=u"),
        ("DELETE", "?uploadId=u"),
    ],
)
def test_what_reads_or_adds_a_file_of_the_table_is_signed(method: str, query: str) -> None:
    headers = {"Range": ["bytes=0-1"], "x-amz-acl": ["private"], "amz-sdk-retry": ["1"]}
    signed = _signer().sign_request(_TABLE, method, f"{_SERVER}{_FILE}{query}", headers)
    (words,) = signed["Authorization"]
    assert "k3y/" in words
    assert "/eu-central-1/s3/aws4_request" in words
    assert "SignedHeaders=host;x-amz-acl;x-amz-content-sha256;x-amz-date," in words
    assert ["UNSIGNED-PAYLOAD"] == signed["X-Amz-Content-SHA256"]
    assert "s3cret" not in str(signed)


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", f"{_SERVER}/lakes/prod/tables/a/theirs-0123456789ab/data/x.parquet"),
        ("GET", f"{_SERVER}/lakes/{_OWN}-more/data/x.parquet"),
        ("GET", f"{_SERVER}/lakes/{_OWN}/../theirs-0123456789ab/x.parquet"),
        ("GET", f"{_SERVER}/lakes/{_OWN}/%2e%2e/theirs-0123456789ab/x.parquet"),
        ("GET", f"{_SERVER}/lakes/{_OWN}/..%2Ftheirs-0123456789ab/x.parquet"),
        ("GET", f"{_SERVER}/lakes/prod/_latest_hint.txt"),
        ("GET", f"{_SERVER}/other/{_OWN}/data/x.parquet"),
        ("GET", f"http://elsewhere.example{_FILE}"),
        ("GET", f"https://store.example:9000{_FILE}"),
        ("GET", f"http://other.store.example:9000/{_OWN}/data/x.parquet"),
        ("GET", f"http://user@store.example:9000{_FILE}"),
        ("GET", f"{_SERVER}/lakes"),
        ("GET", f"{_SERVER}/lakes/?list-type=2&prefix={_OWN}/"),
        ("GET", f"{_SERVER}{_FILE}?acl"),
        ("GET", f"{_SERVER}{_FILE}?versionId=1"),
        ("GET", f"{_SERVER}.elsewhere.example{_FILE}"),
        ("GET", f"{_SERVER}@elsewhere.example{_FILE}"),
        ("GET", f"{_SERVER}{_FILE}#/../x.parquet"),
        ("GET", f"{_SERVER}//{_FILE}"),
        ("GET", f"{_SERVER}/lakes/{_OWN}/\t../theirs-0123456789ab/x.parquet"),
        ("PUT", f"{_SERVER}{_FILE}?acl"),
        ("DELETE", f"{_SERVER}{_FILE}"),
        ("DELETE", f"{_SERVER}{_FILE}#?uploadId=u"),
        ("DELETE", f"{_SERVER}{_FILE}?uploadId="),
        ("POST", f"{_SERVER}/lakes/?delete"),
        ("POST", f"{_SERVER}{_FILE}?delete"),
        ("OPTIONS", f"{_SERVER}{_FILE}"),
        ("get", f"{_SERVER}{_FILE}"),
        ("GET", "file:///etc/passwd"),
    ],
)
def test_nothing_else_is_signed(method: str, uri: str) -> None:
    with pytest.raises(OutsidePlaces):
        _signer().sign_request(_TABLE, method, uri, {})


def test_no_copy_is_signed_and_no_request_for_a_table_that_was_not_loaded() -> None:
    for name in ("X-Amz-Copy-Source", "x-amz-copy-source ", "x-amz-copy-source-range"):
        source = {name: ["/lakes/prod/tables/a/theirs-0123456789ab/data/x.parquet"]}
        with pytest.raises(OutsidePlaces, match="not signed"):
            _signer().sign_request(_TABLE, "PUT", f"{_SERVER}{_FILE}", source)
    with pytest.raises(OutsidePlaces, match="not signed"):
        _signer().sign_request(("a", "u"), "GET", f"{_SERVER}{_FILE}", {})


def test_what_the_operator_allowed_is_signed_and_nothing_where_buckets_stand_before_the_host() -> None:
    signer = _signer(allowed_locations="tables/a=s3://shared/a")
    assert "Authorization" in signer.sign_request(_TABLE, "GET", f"{_SERVER}/shared/a/x.parquet", {})
    with pytest.raises(OutsidePlaces):
        signer.sign_request(_TABLE, "GET", f"{_SERVER}/shared/b/x.parquet", {})
    virtual = {"key": "k", "secret": "s", "config_kwargs": {"s3": {"addressing_style": "virtual"}}}
    assert find_signer(S3Storage("s3://lakes/prod/", virtual)) is None
