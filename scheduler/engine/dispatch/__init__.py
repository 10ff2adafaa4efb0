"""One dispatch cycle: complete, release, claim, hand off."""
