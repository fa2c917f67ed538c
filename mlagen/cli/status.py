"""Exit statuses of the command line; 0 is done and 2, click's own, is wrong usage."""

FAILED = 1
NO_DEVICE = 3
