"""What is measured of engines and of the store, and how Prometheus and OpenTelemetry read it."""
