"""Transcripts: parsing the model's markup, guarding against its defects, writing formats."""
