"""The command `hydra-ens`: parse, call, show."""
