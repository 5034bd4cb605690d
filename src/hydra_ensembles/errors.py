"""What the library raises when a person must act: one line that says what was found and what to do."""


class HydraError(ValueError):
    """The root of our errors; the command prints it in one line, without a traceback."""
