"""The service: live streams over WebSockets and recordings over HTTP, on one port."""
