"""FileIdGeneratorTask and ImageResizerTask, the store of files by content, and paths that stay inside a directory."""
