"""How long a test waits for another process before it says that it hangs: a busy machine may be ten times slower."""

PATIENCE_S = 1800
