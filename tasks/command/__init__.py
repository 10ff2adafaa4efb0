"""CommandTask: a program, its output, and the end of all that it started."""
