"""What the clients of object stores raise: obstore's words read as the server's answer, and mapped to our errors.

obstore has few classes of errors, and puts the rest into words: the status and the body of the answer, or the fate of
the connection. :func:`translate_error` reads them, so that both clients raise the same: an error with a ``response``
like botocore's, ``TimeoutError`` or ``ConnectionError``. No request is made here.
"""

from __future__ import annotations

import re
from typing import Any, Final

from trinitylake_core.errors import (
    AlreadyExists,
    FileMissing,
    InvalidInput,
    StorageDenied,
    StorageError,
    StorageFull,
    TrinityLakeError,
    UnsafeStorage,
)
from trinitylake_core.storage.failures import Outdated, TransientError

_PANIC: Final = "PanicException"
"""What a defect of the Rust code of a client becomes in Python: no ``Exception``."""
_DETAILS: Final = "\n\nDebug source:"
_STATUS: Final = re.compile(r"Server returned non-2xx status code: (\d{3})[^:]*: ?(.*)", re.DOTALL)
_ERROR_BODY: Final = re.compile(r"Server returned error response: (.*)", re.DOTALL)
_OF_A_BATCH: Final = re.compile(r"Bulk delete request failed for key .*: (.*) \(code: (\d{3})\)", re.DOTALL)
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_BARE_REDIRECT: Final = "redirect without LOCATION"
WITHOUT_KEYS: Final = "Pass key and secret, or profile, as storage options"
"""What to do without credentials: in a task of Spark something else is to be done."""
_CREDENTIALS: Final = "credential provider"
_BEYOND_THE_END: Final = "Wanted range starting at"
_CONNECTION: Final = "HTTP error:"
_CAUSE: Final = re.compile(
    r'message: "([^"]+)"|error: "([^"]+)"|\b(IncompleteMessage|IncompleteBody|TimedOut)\b|Parse\(\s*(\w+)'
)
_TIMED_OUT: Final = re.compile(r"kind: Timeout|\bTimedOut\b")
_NOT_CONNECTED: Final = re.compile(r"HttpError \{\s*kind: Connect\b")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_TLS: Final = re.compile(r"InvalidContentType|AlertReceived\(\s*\w+|corrupt message")
_LONGEST_MESSAGE: Final = 200
_SLOW_DOWN: Final = frozenset({"SlowDown", "ServerBusy", "Throttling", "ThrottlingException", "TooManyRequests"})
_AS_S3: Final = {
    "BlobNotFound": "NoSuchKey",
    "ConditionNotMet": "PreconditionFailed",
    "TargetConditionNotMet": "PreconditionFailed",
    "BlobAlreadyExists": "PreconditionFailed",
    "ContainerNotFound": "NoSuchBucket",
    "ServerBusy": "SlowDown",
    "AuthenticationFailed": "AccessDenied",
    "AuthorizationFailure": "AccessDenied",
    "InsufficientAccountPermissions": "AccessDenied",
    "OperationTimedOut": "InternalError",
}
"""What other stores call their answers, and S3 the same ones."""


class Answered(Exception):
    """A server answered with an error; ``response`` has its status, code and message, in the shape of botocore."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.response: dict[str, Any] = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


class NotRenewed(Exception):
    """The credentials could not be found or renewed; the message contains the reason."""


class NotConnected(ConnectionError):
    """There was no connection, so that nothing was sent."""


class NotConnectedInTime(TimeoutError):
    """There was no connection within the time allowed for one, so that nothing was sent."""


class NotTrusted(Exception):
    """The server's certificate was not accepted, or it does not speak TLS; the message contains the reason."""


class Unexplained(Exception):
    """Any other error of obstore, without its details."""


def translate_error(error: BaseException) -> Exception:
    """Return the error of this library for an error of obstore; any other error is returned unchanged."""
    text, _, details = str(error).partition(_DETAILS)
    answer = _answer_in(text)
    if answer is not None:
        return answer
    if _CREDENTIALS in text:
        return NotRenewed(text.rpartition(_CREDENTIALS)[2].strip(": "))
    if type(error).__name__ == _PANIC:
        return Unexplained(f"the client ended in a defect of its own: {text}")
    if _CONNECTION not in text:
        if details or not isinstance(error, Exception):
            return Unexplained(text)
        return error
    return _of_connection(text, details)


def _of_connection(text: str, details: str) -> Exception:
    """Return the error for a request that has no answer."""
    refused = _CERTIFICATE.search(details) or _TLS.search(details)
    if refused:
        return NotTrusted(" ".join(refused[0].replace("(", " ").split()))
    if _NOT_CONNECTED.search(details):
        if _TIMED_OUT.search(details):
            return NotConnectedInTime("no connection within the time allowed for one")
        return NotConnected(_cause(text, details))
    if _TIMED_OUT.search(details):
        return TimeoutError("no complete answer within the time allowed for a request or connection")
    return ConnectionError(_cause(text, details))


def _cause(text: str, details: str) -> str:
    """Return why a connection failed, in the words of the system where it has some."""
    found = _CAUSE.search(details)
    if found is not None:
        for part in found.groups():
            if part:
                return part
    return text.rpartition(_CONNECTION)[2].strip()


def _answer_in(text: str) -> Answered | None:
    """Return the answer of a server that a text speaks of."""
    found = _STATUS.search(text)
    if found:
        return _answer(int(found[1]), found[2])
    if found := _ERROR_BODY.search(text):  # a success by its status, a failure of the server by its body
        return _answer(500, found[1])
    found = _OF_A_BATCH.search(text)
    if found:
        return Answered(int(found[2]), "", found[1][:_LONGEST_MESSAGE])
    if _BARE_REDIRECT in text:
        return Answered(301, "PermanentRedirect", "the server redirects without a location")
    if _BEYOND_THE_END in text:  # Azure takes such a range and begins at 0, obstore sees it
        return Answered(416, "InvalidRange", "the range begins where the object ends, or later")
    return None


def is_slow_down(error: Exception) -> bool:
    """Whether a server asked for fewer requests: status 429 or 503, or a code with this meaning."""
    if not isinstance(error, Answered):
        return False
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status in {429, 503} or error.response["Error"]["Code"] in _SLOW_DOWN


def _answer(status: int, body: str) -> Answered:
    code = _CODE.search(body)
    message = _MESSAGE.search(body)
    name = ""
    if code:
        name = code[1]
    if message:
        text = message[1]
    elif body.lstrip().startswith("<"):
        text = ""
    else:
        text = body.strip()
    return Answered(status, _AS_S3.get(name, name), text[:_LONGEST_MESSAGE])


# Our errors.

TRANSIENT_CODES: Final = frozenset(
    {"InternalError", "OperationAborted", "RequestLimitExceeded", "RequestTimeout", "RequestTimeoutException"}
    | {"ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
)
"""Answers to a request, or for one key of a batch, after which another try may help."""
_FULL_CODES: Final = frozenset({"QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"})
"""Of MinIO and Ceph; S3 itself is never full."""
_DENIED_CODES: Final = frozenset(
    {"AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken"}
    | {"RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired"}
)
_DENIED_CLASSES: Final = frozenset(
    {"CredentialRetrievalError", "NoCredentialsError", "NotRenewed", "PartialCredentialsError"}
    | {"SSOTokenLoadError", "TokenRetrievalError", "UnauthorizedSSOTokenError"}
)
_NOT_CONNECTED_CLASSES: Final = frozenset(
    {"NotConnected", "NotConnectedInTime", "EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError"}
    | {"ClientConnectorError", "ConnectionRefusedError"}
)
_OF_TLS: Final = frozenset({"SSLError", "ClientSSLError", "SSLCertVerificationError"})
_NOT_VERIFIED: Final = "CERTIFICATE_VERIFY_FAILED"
_TRANSIENT_CLASSES: Final = frozenset(
    {"ChecksumError", "ConnectionError", "FlexibleChecksumError", "HTTPClientError"}  # botocore's and the built-in one
    | {"IncompleteReadError", "ResponseStreamingError"}
)
_WRONG_OPTIONS: Final = frozenset(
    {"InvalidConfigError", "InvalidRegionError", "ParamValidationError", "ProfileNotFound"}
)


def is_beyond_the_end(error: Exception) -> bool:
    """Whether a range of bytes was asked for that begins where the object ends, or later."""
    response = getattr(error, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "InvalidRange"


def map_error(kind: str, where: str, bucket: str, error: Exception) -> TrinityLakeError:
    """Return our error for ``error``, raised by a request of ``kind`` for ``where`` (a URI)."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return _map_response(kind, where, bucket, response)
    names = {cls.__name__ for cls in type(error).__mro__}
    of_aiohttp = any(cls.__module__.startswith("aiohttp") for cls in type(error).__mro__)
    text = f"{kind} of {where}: {type(error).__name__}: {error}"
    if names & _WRONG_OPTIONS:
        return InvalidInput(text)
    if names & _DENIED_CLASSES:
        return StorageDenied(f"{text}. {WITHOUT_KEYS}")
    if "NotTrusted" in names or (names & _OF_TLS and _NOT_VERIFIED in str(error)):
        return StorageError(
            f"{text}. The certificate of the server was not accepted. For one of a private authority set "
            "AWS_CA_BUNDLE, or the storage option client_kwargs.verify, to the file of that authority"
        )
    if names & _NOT_CONNECTED_CLASSES:
        return TransientError(f"{text}. Nothing was sent", undone=True)
    if isinstance(error, OSError | EOFError) or names & _TRANSIENT_CLASSES or of_aiohttp:
        return TransientError(text)
    return StorageError(text)


def _map_response(
    kind: str,
    where: str,
    bucket: str,
    response: dict[str, Any],
) -> TrinityLakeError:
    code, status, text = _parts(kind, where, response)
    if code == "NoSuchBucket":
        return StorageError(f"{kind} of {where}: the bucket {bucket!r} does not exist; create it first")
    if kind == "create":
        refused = _translate_refusal(
            code,
            status,
            text,
            "exclusive creation (If-None-Match)",
            where,
        )
        if isinstance(refused, Outdated):
            return AlreadyExists(f"{where} already exists")
        if refused is not None:
            return refused
    if kind in {"get", "head"} and (code == "NoSuchKey" or status == 404):
        return FileMissing(f"{where} does not exist")
    if code in _FULL_CODES or status == 507:
        return StorageFull(text)
    if code in _DENIED_CODES or status in {401, 403}:
        return StorageDenied(f"{text}{_hint_for(kind, code)}")
    if code in TRANSIENT_CODES or status in {408, 429} or (status >= 500 and status != 501):
        return TransientError(text)
    if status in {301, 307, 400} and code in {"PermanentRedirect", "AuthorizationHeaderMalformed", "301"}:
        text += "; the bucket is in another region: set the storage option region"
    return StorageError(text)


_HINTS: Final = {
    "RequestTimeTooSkewed": "; the clock of this machine differs from that of the store: set it by NTP",
    "SignatureDoesNotMatch": "; the secret key is not that of the access key, or a proxy on the way changes requests",
    "InvalidAccessKeyId": "; the store does not know this access key: does it belong to another store?",
    "ExpiredToken": "; the session token has expired: log in again",
    "InvalidToken": "; the session token is not valid, or belongs to another access key",
    "TokenRefreshRequired": "; the session token has to be renewed: log in again",
}
"""What to do about a refusal, by the reason that the store gives."""


def _hint_for(kind: str, code: str) -> str:
    """Return what to do about a refusal; only one without a reason may be that of a missing file."""
    if code in _HINTS:
        return _HINTS[code]
    may_be_missing = kind in {"get", "head"} and code in {"", "403", "AccessDenied", "Forbidden"}
    if may_be_missing:
        return "; without s3:ListBucket a missing file looks like this, too"
    return ""


def refused_swap(where: str, error: Exception) -> TrinityLakeError | None:
    """Return our error if the precondition of a compare-and-set was refused, else ``None``.

    With ``If-Match``, a missing object is refused as missing.
    """
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    code, status, text = _parts("put", where, response)
    if code == "NoSuchKey" or (status == 404 and code in {"", "404"}):
        return Outdated(f"{where} is not what it was when it was read")
    return _translate_refusal(
        code,
        status,
        text,
        "compare-and-set (If-Match)",
        where,
    )


def _parts(kind: str, where: str, response: dict[str, Any]) -> tuple[str, int, str]:
    """Return code and status of an answer, and a text of both."""
    details = response.get("Error", {})
    code = str(details.get("Code", ""))
    metadata = response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0) or 0)
    message = details.get("Message", "")
    return code, status, f"{kind} of {where}: {status} {code}: {message}"


def _translate_refusal(
    code: str,
    status: int,
    text: str,
    what: str,
    where: str,
) -> TrinityLakeError | None:
    """Return our error if a precondition was refused, met a request beside it, or is not known to the store."""
    if code == "PreconditionFailed" or status == 412:
        return Outdated(f"{where} is not what it was when it was read")
    if code == "ConditionalRequestConflict" or (status == 409 and code in {"", "Conflict", "409"}):
        return TransientError(text, undone=True)
    if code == "NotImplemented" or status == 501:
        return UnsafeStorage(f"{where}: this store does not know {what}: {text}")
    return None
