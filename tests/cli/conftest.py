"""Calling the command in tests."""

from types import SimpleNamespace

import pytest

from hydra_ensembles.cli.main import main


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the command as a shell would: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=done.value.code, stdout=out, stderr=err)

    return call
