"""The exceptions of the package. Their messages are those of the program: the law, the numbers and a way out."""


class Error(Exception):
    """The base of the exceptions of the package."""

    __module__ = "orthant"


class ConfigError(Error):
    """The run is impossible. The message states the law, the values with their sources, and settings that work."""

    __module__ = "orthant"


class DataError(Error):
    """A file is missing, damaged or not supported. The message names the file and the problem."""

    __module__ = "orthant"
