"""Calling the command in tests."""

from types import SimpleNamespace

import pytest

from hydra_ensembles.cli.main import main


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the command as a shell would: exit code, standard output, standard error, and its lines but for a note."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        out, err = capsys.readouterr()
        errors = [line for line in err.strip().splitlines() if "has random weights" not in line]
        return SimpleNamespace(returncode=done.value.code, stdout=out, stderr=err, errors=errors)

    return call
