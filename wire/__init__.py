"""What crosses between Tailrace's processes: vocabulary (pure) and four clients (log, sessions, credentials, telemetry)."""
