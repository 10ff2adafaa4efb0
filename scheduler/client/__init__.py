"""What programs call: building, storing, reading and steering tasks."""
