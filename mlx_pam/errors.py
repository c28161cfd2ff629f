"""Errors that a user can cause: the command line prints them in one line, without a traceback."""


class MlxPamError(Exception):
    """Root of every error that names something the user can put right."""


class ConfigError(MlxPamError, ValueError):
    """A setting is unknown or impossible. The text says the name, the rule and the value."""


class DataError(MlxPamError):
    """A corpus is absent, unreadable or too short."""


class CheckpointError(MlxPamError):
    """A checkpoint is absent, damaged or belongs to another model."""


class RunError(MlxPamError):
    """A run folder is in use, or cannot be written to."""


class BackendError(MlxPamError):
    """A backend or a form of retrieval was asked for and is not available here."""
