"""What goes wrong, as exceptions: one class for each code of tensorcache/status.h, with the message of the library.

All are `Error`; each is also the built-in exception that is nearest.

>>> import tensorcache as tc
>>> try:
...     tc.Model("/there/is/none")
... except FileNotFoundError as error:
...     print(type(error).__name__, isinstance(error, tc.Error))
NotFoundError True
"""


class Error(Exception):
    """Of the library. The message is one line: what was wrong with what, and what to do."""


class InvalidArgumentError(Error, ValueError):
    """A value, shape or option that cannot work."""


class NotFoundError(Error, FileNotFoundError):
    """A file, key or tensor that is not there."""


class CorruptError(Error, ValueError):
    """A file whose content contradicts its format."""


class IoError(Error, OSError):
    """The machine failed: disk full, permission, short read, no memory."""


class DivergedError(Error, ArithmeticError):
    """A computation left the finite numbers."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but not something this build or machine does."""
