"""Live speech and recordings to speaker-labelled, timestamped text on MOSS-Transcribe-Diarize."""

from typing import TYPE_CHECKING

from moss_stream.config import EngineConfig
from moss_stream.errors import MossStreamError
from moss_stream.types import Segment, Timing, Transcript, TranscriptWarning, Usage

if TYPE_CHECKING:
    from moss_stream.transcriber import Transcriber

__all__ = [
    "EngineConfig",
    "MossStreamError",
    "Segment",
    "Timing",
    "Transcriber",
    "Transcript",
    "TranscriptWarning",
    "Usage",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The transcriber brings torch, which takes seconds to import: only who asks for it pays.
    if name == "Transcriber":
        from moss_stream.transcriber import Transcriber

        return Transcriber
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
