"""What obstore raises, turned into the answer of the server that it speaks of. No request is made here.

obstore has few classes of errors, and says the rest in words: the status and the body of the answer, or what became of
the connection. Both are read from its text here, so that everything else sees what other clients would raise: an
:class:`Answered` with a ``response`` like botocore's, ``TimeoutError`` or ``ConnectionError``.
"""

from __future__ import annotations

import re
from typing import Any, Final

_DETAILS: Final = "\n\nDebug source:"
_STATUS: Final = re.compile(r"Server returned non-2xx status code: (\d{3})[^:]*: ?(.*)", re.DOTALL)
_ERROR_BODY: Final = re.compile(r"Server returned error response: (.*)", re.DOTALL)
_OF_A_BATCH: Final = re.compile(r"Bulk delete request failed for key .*: (.*) \(code: (\d{3})\)", re.DOTALL)
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_BARE_REDIRECT: Final = "redirect without LOCATION"
_CREDENTIALS: Final = "credential provider"
_BEYOND_THE_END: Final = "Wanted range starting at"
_CONNECTION: Final = "HTTP error:"
_CAUSE: Final = re.compile(r'message: "([^"]+)"|\b(IncompleteMessage|IncompleteBody|TimedOut)\b|Parse\(\s*(\w+)')
_TIMED_OUT: Final = re.compile(r"kind: Timeout|\bTimedOut\b")
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
    """The credentials could not be found or renewed; the message says why."""


class Unexplained(Exception):
    """Whatever else obstore may say, without its details."""


def answered(error: Exception) -> Exception:
    """Return what an error of obstore means; an error of anything else is returned as it is."""
    text, _, details = str(error).partition(_DETAILS)
    if (answer := _answer_in(text)) is not None:
        return answer
    if _CREDENTIALS in text:
        return NotRenewed(text.rpartition(_CREDENTIALS)[2].strip(": "))
    if _CONNECTION in text:
        if _TIMED_OUT.search(details):
            return TimeoutError("no complete answer within the time allowed for a request or connection")
        return ConnectionError(_cause(details) or text.rpartition(_CONNECTION)[2].strip())
    return Unexplained(text) if details else error


def _answer_in(text: str) -> Answered | None:
    """Return the answer of a server that a text speaks of."""
    if found := _STATUS.search(text):
        return _answer(int(found[1]), found[2])
    if found := _ERROR_BODY.search(text):  # a success by its status, a failure of the server by its body
        return _answer(500, found[1])
    if found := _OF_A_BATCH.search(text):
        return Answered(int(found[2]), "", found[1][:_LONGEST_MESSAGE])
    if _BARE_REDIRECT in text:
        return Answered(301, "PermanentRedirect", "the server redirects and does not say where to")
    if _BEYOND_THE_END in text:  # Azure takes such a range and begins at 0, obstore sees it
        return Answered(416, "InvalidRange", "the range begins where the object ends, or later")
    return None


def is_slow_down(error: Exception) -> bool:
    """Return whether a server asked for fewer requests: status 429 or 503, or a code that says so."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return False
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    return status in {429, 503} or response["Error"]["Code"] in _SLOW_DOWN


def _answer(status: int, body: str) -> Answered:
    code, message = _CODE.search(body), _MESSAGE.search(body)
    name = code[1] if code else ""
    text = message[1] if message else ("" if body.lstrip().startswith("<") else body.strip())
    return Answered(status, _AS_S3.get(name, name), text[:_LONGEST_MESSAGE])


def _cause(details: str) -> str:
    found = _CAUSE.search(details)
    return next((part for part in found.groups() if part), "") if found else ""
