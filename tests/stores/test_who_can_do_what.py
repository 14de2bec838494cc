"""The table *who can do what* of docs/security.md, at a store that looks at policies: MinIO. `make test-stores`.

Each identity gets keys that can do what its row says, and nothing else. It does its work with them, and what its row
does not say is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import ClientError
from pyiceberg.catalog import Catalog, load_catalog

from tests.stores.jobs import Place, run_all_jobs
from tests.support.icebergs import ids, rows, with_table
from tests.support.real_stores import RunningStore
from tests.support.s3_servers import BUCKET, KEY, SECRET
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Served, endpoint

_PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
_ADD: Final = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
_ACTIONS: Final = {"read": ["s3:GetObject"], "add": _ADD, "delete": ["s3:DeleteObject"]}
_COLUMNS: Final = ("catalog", "table", "others", "backup")
_ROWS: Final = {
    "reader": "A client with `read`",
    "writer": "A client with `write`",
    "role": "The role of",
    "endpoint": "`trinitylake-serve`",
    "maintenance": "`trinitylake-code`",
    "daemon": "`trinitylake-daemon`",
    "webserver": "`trinitylake-webserver`",
}


def _row(identity: str) -> dict[str, set[str]]:
    """Return what an identity can do in each place, by the page."""
    text = _PAGE.read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(_ROWS[identity])}.*$", text, re.MULTILINE)
    cells = row.split("|")[2:6]
    return {place: set(re.findall(r"\w+", cell)) for place, cell in zip(_COLUMNS, cells, strict=True)}


@dataclass(frozen=True)
class _Deployment:
    """A lakehouse with two tables and its backup in one bucket, and who asks for keys."""

    endpoint: str
    options: dict[str, Any]
    root: str
    copy: str
    prefixes: dict[str, str]

    def keys(self, identity: str) -> dict[str, str]:
        """Return keys that can do what the row of an identity says."""
        statements: list[dict[str, Any]] = []
        for place, words in _row(identity).items():
            prefix = self.prefixes[place]
            actions = [each for word in sorted(words) for each in _ACTIONS[word]]
            if actions:
                statements.append(
                    {"Effect": "Allow", "Action": actions, "Resource": f"arn:aws:s3:::{BUCKET}/{prefix}*"}
                )
            if "read" in words:
                condition = {"StringLike": {"s3:prefix": f"{prefix}*"}}
                listing = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{BUCKET}"}
                statements.append(listing | {"Condition": condition})
        nothing = {"Effect": "Deny", "Action": "s3:*", "Resource": "arn:aws:s3:::*"}
        policy = {"Version": "2012-10-17", "Statement": statements or [nothing]}
        answer = self.client("sts").assume_role(
            RoleArn="arn:aws:iam::000000000000:role/x", RoleSessionName=identity, Policy=json.dumps(policy)
        )
        found = answer["Credentials"]
        return {"key": found["AccessKeyId"], "secret": found["SecretAccessKey"], "token": found["SessionToken"]}

    def client(self, service: str = "s3", **keys: str) -> Any:
        """Return a client of the store, with keys or with those that can do everything."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=keys.get("key", KEY),
            aws_secret_access_key=keys.get("secret", SECRET),
            aws_session_token=keys.get("token"),
        )


@pytest.fixture
def deployment(minio: RunningStore) -> _Deployment:
    """The catalog's files are all below the root but those of tables: its prefixes end before ``tables/``."""
    root = minio.new_root()
    lake = Lakehouse.create(root, storage_options=minio.options)
    with endpoint(lake) as at:
        catalog = _catalog(at)
        table, other = (with_table(catalog, name, 1).location() for name in ("a.t", "a.other"))
    copy = minio.new_root()
    inside = {place: uri.removeprefix(f"s3://{BUCKET}/") for place, uri in (("table", table), ("others", other))}
    prefixes = {"catalog": root, "backup": copy}
    inside |= {place: uri.removeprefix(f"s3://{BUCKET}/") for place, uri in prefixes.items()}
    return _Deployment(minio.options["endpoint_url"], minio.options, root, copy, inside)


def _catalog(at: Served) -> Catalog:
    """Return a client that reads and writes files with keys of its own."""
    keys = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET}
    return load_catalog("lake", type="rest", **at.properties(), **keys)


def _is_refused(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except ClientError as error:
        return bool(error.response["ResponseMetadata"]["HTTPStatusCode"] == 403)
    return False


def test_every_row_of_the_page_is_tried() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Who can do what\n")
    rows_of_page = re.findall(r"^\| (?!Identity).*$", section.partition("\n## ")[0], re.MULTILINE)
    assert len(_ROWS) == len(rows_of_page)


@pytest.mark.parametrize("identity", _ROWS)
def test_what_is_not_in_a_row_is_refused(deployment: _Deployment, identity: str) -> None:
    """Where places lie in each other, a row says the same of both."""
    own = deployment.client(**deployment.keys(identity))
    behind = deployment.client()
    attempts = 0
    for place, words in _row(identity).items():
        file = f"{deployment.prefixes[place].rstrip('/')}/data/attempt"
        at = {"Bucket": BUCKET, "Key": file}
        behind.put_object(**at, Body=b"x")
        tries = {
            "read": [partial(own.get_object, **at), partial(own.list_objects_v2, Bucket=BUCKET, Prefix=file)],
            "add": [partial(own.put_object, **at, Body=b"y"), partial(own.create_multipart_upload, **at)],
            "delete": [partial(own.delete_object, **at)],
        }
        for word, asks in tries.items():
            for ask in asks:
                attempts += 1
                assert (word not in words) == _is_refused(ask), (place, word)
    print(f"{identity}: {attempts} attempts")


def test_the_endpoint_does_its_work_with_its_row(deployment: _Deployment) -> None:
    """Its clients read and write files with keys of their own here."""
    mine = deployment.options | deployment.keys("endpoint")
    lake = Lakehouse.open(deployment.root, storage_options=mine)
    with endpoint(lake) as at:
        catalog = _catalog(at)
        catalog.create_namespace("b")
        table = with_table(catalog, "b.t", 1)
        table.append(rows(2))
        table.delete("id = 1")
        assert [2] == ids(catalog.load_table("b.t"))
        catalog.rename_table("b.t", "b.u")
        catalog.drop_table("b.u")
    assert [] == list(lake.refresh().check())


def test_maintenance_does_its_work_with_its_row(deployment: _Deployment, minio: RunningStore, tmp_path: Path) -> None:
    """All jobs, with the backup, in a lakehouse that has no other tables."""
    root = minio.new_root()
    own = {"catalog": root.removeprefix(f"s3://{BUCKET}/")}
    deployment = replace(deployment, root=root, prefixes=deployment.prefixes | own)
    mine = deployment.options | deployment.keys("maintenance")
    with Lakehouse.create(root, storage_options=mine).transaction() as txn:
        txn.create_namespace("ns")
    run_all_jobs(Place(root, mine, "local", None), deployment.copy, tmp_path)
