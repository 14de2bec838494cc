"""What an S3 client may raise, mapped to our errors. No request is made here."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from trinitylake_core.errors import (
    AlreadyExists,
    FileMissing,
    InvalidInput,
    StorageDenied,
    StorageError,
    TrinityLakeError,
    UnsafeStorage,
)
from trinitylake_core.storage.failures import Outdated, TransientError

_TRANSIENT_CODES: Final = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_DENIED_CODES: Final = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_DENIED_CLASSES: Final = frozenset(
    {
        "CredentialRetrievalError",
        "NoCredentialsError",
        "NotRenewed",
        "PartialCredentialsError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)
_TRANSIENT_CLASSES: Final = frozenset(
    {
        "ChecksumError",
        "ConnectionError",  # botocore's and the built-in one
        "FlexibleChecksumError",
        "HTTPClientError",
        "IncompleteReadError",
        "ResponseStreamingError",
    }
)
_WRONG_OPTIONS: Final = frozenset(
    {"InvalidConfigError", "InvalidRegionError", "ParamValidationError", "ProfileNotFound"}
)


def is_transient_code(code: str) -> bool:
    """Return whether a per-key error of a batch is worth another try."""
    return code in _TRANSIENT_CODES


def is_beyond_the_end(error: Exception) -> bool:
    """Return whether a range of bytes was asked for that begins where the object ends, or later."""
    response = getattr(error, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "InvalidRange"


def map_error(kind: str, where: str, bucket: str, error: Exception) -> TrinityLakeError:
    """Return our error for ``error``, raised by a request of ``kind`` for ``where`` (a URI)."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return _map_response(kind, where, bucket, response)
    names = {cls.__name__ for cls in type(error).__mro__}
    text = f"{kind} of {where}: {type(error).__name__}: {error}"
    if names & _WRONG_OPTIONS:
        return InvalidInput(text)
    if names & _DENIED_CLASSES:
        return StorageDenied(f"{text}. Pass key and secret, or profile, as storage options")
    network = isinstance(error, asyncio.TimeoutError | TimeoutError | OSError | EOFError)
    if network or names & _TRANSIENT_CLASSES or _is_client_error_of_aiohttp(error):
        return TransientError(text)
    return StorageError(text)


def _is_client_error_of_aiohttp(error: Exception) -> bool:
    return any(cls.__module__.startswith("aiohttp") for cls in type(error).__mro__)


def _map_response(kind: str, where: str, bucket: str, response: dict[str, Any]) -> TrinityLakeError:
    details = response.get("Error", {})
    code = str(details.get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    text = f"{kind} of {where}: {status} {code}: {details.get('Message', '')}"
    if code == "NoSuchBucket":
        return StorageError(f"{kind} of {where}: the bucket {bucket!r} does not exist; create it first")
    if kind == "create" and (mapped := _map_create(where, code, status, text)) is not None:
        return mapped
    if kind in {"get", "head"} and (code == "NoSuchKey" or status == 404):
        return FileMissing(f"{where} does not exist")
    if code in _DENIED_CODES or status in {401, 403}:
        hint = "; without s3:ListBucket a missing file looks like this, too" if kind in {"get", "head"} else ""
        return StorageDenied(text + hint)
    if code in _TRANSIENT_CODES or status in {408, 429} or (status >= 500 and status != 501):
        return TransientError(text)
    if status in {301, 307, 400} and code in {"PermanentRedirect", "AuthorizationHeaderMalformed", "301"}:
        text += "; the bucket is in another region: set the storage option region"
    return StorageError(text)


def refused_swap(where: str, error: Exception) -> TrinityLakeError | None:
    """Return our error if the precondition of a compare-and-set was refused, else ``None``.

    With ``If-Match``, a missing object is refused as missing.
    """
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    details = response.get("Error", {})
    code = str(details.get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    text = f"put of {where}: {status} {code}: {details.get('Message', '')}"
    if code == "PreconditionFailed" or status == 412 or code == "NoSuchKey" or (status == 404 and code in {"", "404"}):
        return Outdated(f"{where} is not what it was when it was read")
    if code == "ConditionalRequestConflict" or (status == 409 and code in {"", "Conflict", "409"}):
        return TransientError(text, undone=True)
    if code == "NotImplemented" or status == 501:
        return UnsafeStorage(f"{where}: this store does not know compare-and-set (If-Match): {text}")
    return None


def _map_create(where: str, code: str, status: int, text: str) -> TrinityLakeError | None:
    if code == "PreconditionFailed" or status == 412:
        return AlreadyExists(f"{where} already exists")
    if code == "ConditionalRequestConflict" or (status == 409 and code in {"", "Conflict", "409"}):
        return TransientError(text, undone=True)
    if code == "NotImplemented" or status == 501:
        return UnsafeStorage(f"{where}: this store does not know exclusive creation (If-None-Match): {text}")
    return None
