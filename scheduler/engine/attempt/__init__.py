"""One attempt: its state, what it may ask of the engine, its captured output, its outcome."""
