"""Exceptions for the library's errors. A bad argument is a plain ValueError."""


class UnsupportedError(ValueError):
    """Valid, but this CPU, build or combination cannot serve it."""


class OutOfPagesError(MemoryError):
    """A KvCache's byte cap, or its most tokens of a sequence, does not suffice; nothing was changed."""


class FileError(OSError, ValueError):
    """A file could not be read, or what is in it is no model this library knows."""
