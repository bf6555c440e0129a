"""Audio: sample formats, resampling, buffers and media files."""
