"""Client of a moss-stream server: audio in, speaker-labelled captions out.

`connect` opens a stream; `moss_stream_client.microphone` has the microphone. A lost connection is
resumed without loss or repetition for as long as the server keeps the session.
"""

from moss_stream_client.dialing import Backoff
from moss_stream_client.errors import (
    AtCapacity,
    AudioError,
    ClientError,
    ConnectError,
    EventsUnread,
    ProtocolError,
    Refused,
    ResumeExpired,
    StreamLost,
    UsageError,
)
from moss_stream_client.events import (
    Ack,
    Committed,
    Completed,
    Delta,
    Event,
    Failed,
    Finished,
    Gap,
    Hypothesis,
    HypothesisSegment,
    Relabel,
    Resumed,
    Segment,
    ServerError,
    SpeechStarted,
    SpeechStopped,
    Unknown,
    Warning,
)
from moss_stream_client.stream import Stream, connect

__all__ = [
    "Ack",
    "AtCapacity",
    "AudioError",
    "Backoff",
    "ClientError",
    "Committed",
    "Completed",
    "ConnectError",
    "Delta",
    "Event",
    "EventsUnread",
    "Failed",
    "Finished",
    "Gap",
    "Hypothesis",
    "HypothesisSegment",
    "ProtocolError",
    "Refused",
    "Relabel",
    "ResumeExpired",
    "Resumed",
    "Segment",
    "ServerError",
    "SpeechStarted",
    "SpeechStopped",
    "Stream",
    "StreamLost",
    "Unknown",
    "UsageError",
    "Warning",
    "connect",
]
