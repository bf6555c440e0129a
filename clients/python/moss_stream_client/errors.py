"""Every error this package raises on purpose.

ClientError
├─ UsageError            a wrong argument, or a call in the wrong state
│  └─ AudioError         audio that cannot be sent: encoding, rate, channels, device
├─ ConnectError          (retryable) the server cannot be reached
│  ├─ Refused            it was reached and said no: key, origin, configuration
│  └─ AtCapacity         (retryable) no room for another stream now; `retry_after_s`
├─ StreamLost            the stream ended before its end was confirmed; `unacknowledged_samples`
│  └─ ResumeExpired      the server no longer knows the session
├─ ProtocolError         the server broke the wire contract
└─ EventsUnread          too many events wait because nobody iterates over the stream
"""

from __future__ import annotations

from typing import ClassVar


class ClientError(Exception):
    """Base of all errors of this package.

    Args:
        message: One line for a person.
    """

    retryable: ClassVar[bool] = False
    """Whether a new stream may succeed later without a change."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UsageError(ClientError):
    """An argument is wrong, or a call came in the wrong state."""


class AudioError(UsageError):
    """The audio cannot be sent: its encoding, rate, channels or device."""


class ConnectError(ClientError):
    """The server cannot be reached."""

    retryable = True


class Refused(ConnectError):
    """The server was reached and refused: the key, the origin or the configuration."""

    retryable = False


class AtCapacity(ConnectError):
    """The server has no room for another stream now.

    Args:
        message: One line for a person.
        retry_after_s: When a retry makes sense, seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StreamLost(ClientError):
    """The stream ended before the server confirmed its end.

    Args:
        message: One line for a person, with the reason.
        close_code: WebSocket close code of the last connection, if it had one.
        unacknowledged_samples: Samples handed to `send` that the server never confirmed.
    """

    def __init__(
        self, message: str, *, close_code: int | None = None, unacknowledged_samples: int = 0
    ) -> None:
        super().__init__(message)
        self.close_code = close_code
        self.unacknowledged_samples = unacknowledged_samples


class ResumeExpired(StreamLost):
    """The server no longer knows the session: its grace time is over or it restarted."""


class ProtocolError(ClientError):
    """The server broke the wire contract."""


class EventsUnread(ClientError):
    """Too many events wait unread: iterate over the stream while sending."""
