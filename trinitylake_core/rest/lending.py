"""Keys that are lent for the directory of one table (``vended-credentials``), by an STS: ``AssumeRole``.

They can do what the role can and what the policy of the session allows, no more: reading, or reading and adding, in one
directory. None of them deletes, because nothing but the cleanings does. An STS that hangs or refuses stops nobody: the
answer comes without keys, and clients use their own.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from trinitylake_core import clock
from trinitylake_core.errors import InvalidInput
from trinitylake_core.tables import DIRECTORY, base_uri

LOG: Final = logging.getLogger("trinitylake.rest")
_PLAIN: Final = re.compile(r"s3://([a-z0-9.-]{3,63})/((?:[A-Za-z0-9_.=@+-]+/)+)")
"""What a policy cannot mistake for a pattern or a variable."""
_READ: Final = ("s3:GetObject",)
_WRITE: Final = (*_READ, "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
_ROLE: Final = re.compile(r"arn:([a-z0-9-]+):iam::[0-9]*:role/[\w+=,.@/-]+")
_NOT_IN_SESSIONS: Final = re.compile(r"[^\w+=,.@-]", re.ASCII)
_SESSION_CHARACTERS: Final = 64
_LEAST_SECONDS: Final = 900
_MOST_SECONDS: Final = 43_200
_WAIT_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 5.0
"""So long nobody asks an STS that failed."""
_BUSY: Final = re.compile("Throttl|TooMany|LimitExceeded|SlowDown")
"""In the code of an error of an STS that has too much to do."""
_LONGEST_POLICY: Final = 2048
"""So many characters every STS takes."""
_MOST_AT_ONCE: Final = 8
_MOST_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class Lent:
    """Keys of somebody for a directory, and when they end, in epoch milliseconds."""

    directory: str
    key: str
    secret: str
    token: str
    ends: int

    def as_credential(self) -> dict[str, Any]:
        """Return what the specification calls a storage credential."""
        config = {
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "s3.session-token": self.token,
            "s3.session-token-expires-at-ms": str(self.ends),
        }
        return {"prefix": self.directory, "config": config}


class Lender:
    """Lends keys. Thread-safe.

    Args:
        role: the ARN of the role whose keys are lent. It should do no more than the tables of the lakehouses need. A
            store that has no roles, such as MinIO, lends those of the identity that asks.
        profile: the AWS profile that asks; otherwise what botocore finds.
        endpoint: where the STS is; otherwise AWS.
        seconds: how long keys are good.

    Raises ``InvalidInput``: no ARN of a role, or a time that no STS allows.
    """

    def __init__(
        self, role: str, *, profile: str | None = None, endpoint: str | None = None, seconds: int = 3600
    ) -> None:
        match = _ROLE.fullmatch(role)
        if match is None:
            raise InvalidInput(f"{role!r} is not the ARN of a role, such as arn:aws:iam::123456789012:role/tables")
        if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
            raise InvalidInput(f"keys are lent for {_LEAST_SECONDS} to {_MOST_SECONDS} seconds, not {seconds}")
        self._role = role
        self._partition = match[1]
        self._seconds = seconds
        session = botocore.session.Session(profile=profile)
        waits = Config(connect_timeout=_WAIT_SECONDS, read_timeout=_WAIT_SECONDS, retries={"total_max_attempts": 1})
        region = session.get_config_variable("region") or "us-east-1"
        self._sts = session.create_client("sts", region_name=region, endpoint_url=endpoint, config=waits)
        self._kept: OrderedDict[tuple[str, str, bool], Lent] = OrderedDict()
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._pause_until = 0.0

    def lend(self, root: str, directory: str, principal: str, *, writes: bool) -> Lent | None:
        """Return keys that are good for at least half of their time. One request, where none are kept.

        ``None``: the STS gives none now, a policy cannot name this directory, or it is not one of tables only.
        """
        wanted = (directory, principal, writes)
        with self._lock:
            kept = self._kept.get(wanted)
        if kept is not None and kept.ends - clock.now_millis() > self._seconds * 500:
            return kept
        policy = policy_for(root, directory, self._partition, writes=writes)
        if policy is None or time.monotonic() < self._pause_until:
            return None
        if not self._turns.acquire(blocking=False):  # others wait for the STS; this one is answered
            return None
        try:
            lent = self._ask(directory, principal, policy)
        except (BotoCoreError, ClientError, KeyError) as error:
            if _is_for_all(error):
                self._pause_until = time.monotonic() + _PAUSE_SECONDS
            LOG.warning("no keys can be lent (%s): clients are told that there are none", type(error).__name__)
            return None
        finally:
            self._turns.release()
        with self._lock:
            self._kept[wanted] = lent
            self._kept.move_to_end(wanted)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return lent

    def _ask(self, directory: str, principal: str, policy: Mapping[str, Any]) -> Lent:
        name = _NOT_IN_SESSIONS.sub("_", principal)
        answer = self._sts.assume_role(
            RoleArn=self._role,
            RoleSessionName=f"{name:_<2}"[:_SESSION_CHARACTERS],
            Policy=_text_of(policy),
            DurationSeconds=self._seconds,
        )
        found = answer["Credentials"]
        ends = int(found["Expiration"].timestamp() * 1000)
        return Lent(directory, found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], ends)


def policy_for(root: str, directory: str, partition: str = "aws", *, writes: bool) -> dict[str, Any] | None:
    """Return the policy of a session that reads in one directory of a table, or reads and adds.

    ``None``: a policy cannot name it, or would be too long for that, or it has more than files of tables.
    """
    match = _PLAIN.fullmatch(directory)
    if match is None or not _has_tables_only(root, directory):
        return None
    bucket, path = match.groups()
    if "/." in f"/{path}":
        return None
    files = {
        "Effect": "Allow",
        "Action": list(_WRITE if writes else _READ),
        "Resource": f"arn:{partition}:s3:::{bucket}/{path}*",
    }
    listing = {
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": f"arn:{partition}:s3:::{bucket}",
        "Condition": {"StringLike": {"s3:prefix": f"{path}*"}},
    }
    policy = {"Version": "2012-10-17", "Statement": [files, listing]}
    return policy if len(_text_of(policy)) <= _LONGEST_POLICY else None


def _text_of(policy: Mapping[str, Any]) -> str:
    return json.dumps(policy, separators=(",", ":"))


def _is_for_all(error: Exception) -> bool:
    """Whether an STS gives keys to nobody now: it is away, broken or busy. Otherwise it refused what one asked for."""
    if not isinstance(error, ClientError):
        return not isinstance(error, ParamValidationError)
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status >= 500 or _BUSY.search(error.response["Error"]["Code"]) is not None


def _has_tables_only(root: str, directory: str) -> bool:
    """Whether a directory has no file of the catalog: below the root only those below ``tables/`` have none."""
    base = base_uri(root)
    if base.startswith(directory):
        return False
    return not directory.startswith(base) or directory.startswith(f"{base}{DIRECTORY}")
