"""Errors that end a command: one line each, and the exit code that goes with it.

A message names the file, tensor or option, the value found, what was expected and the next step.
"""


class Error(Exception):
    """A failure at run time: a bad model, corpus or RUN."""

    exit_code = 1


class UsageError(Error):
    """Wrong usage, or refused before any work."""

    exit_code = 2


class VerificationError(Error):
    """A checkpoint or RUN that differs from what its manifest says."""

    exit_code = 3


class ResourceError(Error):
    """Not enough memory or disk, said before the work starts."""

    exit_code = 4
