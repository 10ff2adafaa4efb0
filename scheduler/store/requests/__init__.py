"""What running attempts ask to have written."""
