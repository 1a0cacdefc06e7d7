"""What goes wrong, in the words of the library.

Every exception is an Error and one of Python's own: InvalidArgumentError is a
ValueError. A call that raises has changed nothing.
"""


class Error(Exception):
    """Of the library."""


class InvalidArgumentError(Error, ValueError):
    """A field is wrong: the message names it, what was expected, what came."""


class NotFoundError(Error, LookupError):
    """There is no such request, table or file."""


class AlreadyExistsError(Error, ValueError):
    """A live request has this id."""


class ResourceExhaustedError(Error, RuntimeError):
    """The queue is full, a quota used up, or a request can never fit."""


class FailedPreconditionError(Error, RuntimeError):
    """The engine cannot do it, or not now."""


class AbortedError(Error, RuntimeError):
    """What it was about has ended, or lost its engine."""


class InternalError(Error, RuntimeError):
    """The engine refused."""


class UnavailableError(Error, ConnectionError):
    """No daemon answers, no engine is attached to it, or there is no CUDA device."""


class StalePlanError(Error, RuntimeError):
    """A plan was used after its step was answered."""
