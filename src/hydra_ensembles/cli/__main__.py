"""`python -m hydra_ensembles.cli` is `hydra-ens`."""

from hydra_ensembles.cli.main import main

if __name__ == "__main__":
    main()
