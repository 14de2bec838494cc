"""Signatures for single requests to S3 (``remote-signing``), for a client without keys that works on whole tables.

A client opens whatever manifests name, and who writes a table may change them at any time. So the place of each file is
compared with those of its table when the request for it is signed, and nothing lies between the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from botocore.auth import UNSIGNED_PAYLOAD, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from pyiceberg.typedef import Identifier

from trinitylake_core.errors import OutsidePlaces
from trinitylake_core.storage import Storage
from trinitylake_core.storage.s3 import S3Storage
from trinitylake_core.table_places import TablePlaces

_SIGNED: Final = re.compile(
    r"(GET|HEAD|PUT)\?|PUT\?(partNumber=\d+&uploadId=[^&]+|uploadId=[^&]+&partNumber=\d+)|"
    r"POST\?(uploads=?|uploadId=[^&]+)|DELETE\?uploadId=[^&]+"
)
"""Methods and queries: they read a file or add one. None deletes, as only the cleanings do; with an empty
``uploadId`` some stores would."""
_HEADER: Final = re.compile(r"x-amz-(?!copy-source)[a-z0-9-]+", re.ASCII | re.IGNORECASE)
"""A header that is signed: none that names a file to copy, in whatever spelling a signature makes that of it."""


class _WithoutBody(S3SigV4Auth):  # type: ignore[misc]
    """A signature of a request whose body the client sends by itself."""

    def payload(self, request: AWSRequest) -> str:
        """Return what stands for the hash of the body."""
        return str(UNSIGNED_PAYLOAD)


def find_signer(storage: Storage) -> RequestSigner | None:
    """Return who signs requests for files of tables below the root of a storage; ``None``: nobody.

    It is none of S3, or the operator said that buckets do not stand in paths there.
    """
    if isinstance(storage, S3Storage) and storage.settings().options.path_style is not False:
        return RequestSigner(storage)
    return None


class RequestSigner:
    """Signs requests for the files of tables with the keys of a storage. Thread-safe.

    It knows the places of a table from when a client has loaded it: a request costs no look at the catalog.
    """

    def __init__(self, storage: S3Storage) -> None:
        self._storage = storage
        self._settings = storage.settings()
        self._places: dict[Identifier, TablePlaces] = {}

    def admit_table(self, identifier: Identifier, metadata_location: str) -> dict[str, str]:
        """Sign for the files of a table from now on; return the properties by which clients find the store. No request.

        Raises ``InvalidInput``: the prefixes that the operator allowed cannot be read.
        """
        self._places[identifier] = TablePlaces.of(self._storage, metadata_location)
        return {
            "s3.remote-signing-enabled": "true",
            "s3.delete-enabled": "false",
            "s3.endpoint": self._settings.endpoint,
            "s3.path-style-access": "true",
            "client.region": self._settings.region,
        }

    def sign_request(
        self, identifier: Identifier, method: str, uri: str, headers: Mapping[str, list[str]]
    ) -> dict[str, list[str]]:
        """Return the headers that a request needs to be answered by the store.

        Raises ``OutsidePlaces``: it is for another file than one of this table, or neither reads one nor adds one.
        """
        address, _, query = uri.partition("?")
        signed = {name: ",".join(values) for name, values in headers.items() if name.lower().startswith("x-amz-")}
        server = f"{self._settings.endpoint}/"
        places = self._places.get(identifier)
        is_odd = "#" in uri or not uri.isprintable() or not all(map(_HEADER.fullmatch, signed))
        is_signed = _SIGNED.fullmatch(f"{method}?{query}")
        if places is None or is_odd or not is_signed or not address.startswith(server):
            raise OutsidePlaces(f"{method} {address} is not signed: it reads and adds no file of its table")
        places.require("s3://" + unquote(address.removeprefix(server)))
        give_keys = self._settings.credentials
        if give_keys is None:  # the store looks at no signature
            return {}
        keys = give_keys()
        known = ReadOnlyCredentials(keys["access_key_id"], keys["secret_access_key"], keys.get("token"))
        request = AWSRequest(method, uri, signed)
        _WithoutBody(known, "s3", self._settings.region).add_auth(request)
        return {name: [value] for name, value in request.headers.items()}
