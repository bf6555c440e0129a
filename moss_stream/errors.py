"""Every error this package raises on purpose.

MossStreamError
├─ ConfigError                 a bad option, found before any work starts
├─ ModelError
│  ├─ WeightsError             missing, extra or wrongly shaped tensors
│  └─ UnsupportedModelError    not a checkpoint this package can run
├─ ClientError                 the caller must change something
│  ├─ InvalidMessage           not parseable, or a wrong field
│  ├─ UnsupportedAudio         encoding, rate, channels, not audio at all
│  ├─ AudioTooLong             beyond the context or a configured limit
│  ├─ MessageTooLarge          beyond a size limit
│  ├─ OutOfOrder               not allowed in this state
│  ├─ Unauthorized             no key, or a wrong one
│  ├─ Forbidden                the key or the page may not do this
│  └─ NotFound                 nothing by this name
│     └─ ModelNotFound         no such model is served
├─ CapacityError               (retryable) a limit of the machine or of the configuration
│  ├─ TooManyStreams
│  ├─ QueueFull
│  └─ TooSlow                  fell behind the allowed lag
├─ EngineError
│  ├─ EngineStopped            (retryable) draining or closed
│  ├─ RequestFailed            one request failed, the engine lives
│  └─ DeviceError              out of memory, device failure
├─ StorageError                (retryable) the database cannot be read or written
├─ Cancelled                   the caller asked for it
└─ StateError                  a programming error: used in the wrong state

A message says what was expected and what came, and names the field, the value and the limit. It
never carries a secret or transcript text.
"""

from __future__ import annotations

from typing import ClassVar


class MossStreamError(Exception):
    """Base of all errors of this package.

    Args:
        message: One line for a person.
        field: The option, parameter or message field at fault, if one is.
    """

    code: ClassVar[str] = "error"
    """Stable machine-readable name, the same on every wire."""
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without a change."""
    close_code: ClassVar[int | None] = None
    """WebSocket close code when the error ends a connection; None when it never does."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ConfigError(MossStreamError):
    """A bad option, found before any work starts."""

    code = "invalid_config"


class ModelError(MossStreamError):
    """The model cannot be used."""

    code = "model_error"
    close_code = 1011


class WeightsError(ModelError):
    """Tensors of the checkpoint are missing, unexpected or wrongly shaped."""

    code = "bad_weights"


class UnsupportedModelError(ModelError):
    """The directory or hub id is not a checkpoint this package can run."""

    code = "unsupported_model"


class ClientError(MossStreamError):
    """The caller must change something before trying again."""

    code = "invalid_request"
    close_code = 1008


class InvalidMessage(ClientError):
    """A message is not parseable or a field is wrong."""

    code = "invalid_message"
    close_code = 1007


class UnsupportedAudio(ClientError):
    """The audio's encoding, rate or channels cannot be used, or it is not audio."""

    code = "unsupported_audio"
    close_code = 1003


class AudioTooLong(ClientError):
    """The audio is longer than the model's context or a configured limit."""

    code = "audio_too_long"
    close_code = 1009


class MessageTooLarge(ClientError):
    """A message or upload is larger than its limit."""

    code = "message_too_large"
    close_code = 1009


class OutOfOrder(ClientError):
    """The message is not allowed in this state."""

    code = "out_of_order"


class Unauthorized(ClientError):
    """No key, or one that is not known or has expired."""

    code = "invalid_api_key"


class Forbidden(ClientError):
    """The key or the page may not do this."""

    code = "forbidden"


class NotFound(ClientError):
    """There is nothing by this name."""

    code = "not_found"


class ModelNotFound(NotFound):
    """No such model is served."""

    code = "model_not_found"


class CapacityError(MossStreamError):
    """A limit of the machine or the configuration is reached; try again later.

    Args:
        message: One line for a person.
        field: The limit that is reached.
        retry_after_s: When a retry makes sense, seconds.
    """

    code = "at_capacity"
    retryable = True
    close_code = 1013

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: float = 1.0
    ) -> None:
        super().__init__(message, field=field)
        self.retry_after_s = retry_after_s


class TooManyStreams(CapacityError):
    """No further stream is admitted now."""

    code = "too_many_streams"


class QueueFull(CapacityError):
    """A bounded queue is full."""

    code = "queue_full"


class TooSlow(CapacityError):
    """The client or the engine fell behind the allowed lag."""

    code = "too_slow"


class EngineError(MossStreamError):
    """The engine could not do its work."""

    code = "engine_error"
    close_code = 1011


class EngineStopped(EngineError):
    """The engine is draining or closed, or it broke down and starts over."""

    code = "engine_stopped"
    retryable = True
    close_code = 1012


class RequestFailed(EngineError):
    """One request failed; the engine goes on."""

    code = "request_failed"


class DeviceError(EngineError):
    """The device ran out of memory or failed."""

    code = "device_error"


class StorageError(MossStreamError):
    """The database cannot be read or written, for now."""

    code = "storage_error"
    retryable = True
    close_code = 1011


class Cancelled(MossStreamError):
    """The request was cancelled by its caller."""

    code = "cancelled"


class StateError(MossStreamError):
    """A programming error: something was used in the wrong state."""

    code = "wrong_state"
