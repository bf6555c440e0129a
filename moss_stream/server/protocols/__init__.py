"""Wire protocols as pure translators: messages in, commands out; events in, messages out."""
