"""What the tests stand on: the run, its databases, the book of cases."""
