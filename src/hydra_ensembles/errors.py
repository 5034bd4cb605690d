"""What the library raises or warns of when a person must act: one line that says what was found and what to do."""


class HydraError(ValueError):
    """The root of our errors; the command prints it in one line, without a traceback."""


class HydraWarning(UserWarning):
    """Work goes on, but perhaps not to what was meant; the command prints it in one line."""


def in_one_line(error: Exception) -> str:
    """Kind and first line of somebody else's error.

    >>> in_one_line(KeyError("spec"))
    "KeyError: 'spec'"
    """
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
