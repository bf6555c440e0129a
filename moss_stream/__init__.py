"""Live speech and recordings to speaker-labelled, timestamped text on MOSS-Transcribe-Diarize."""
