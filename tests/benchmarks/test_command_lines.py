"""Scripts that take hours do not begin because somebody asks what they do."""

import sys

import pytest

from command_line import words


def test_every_script_reads_its_command_line(repository):
    scripts = [path for path in (repository / "benchmarks").rglob("*.py") if '"__main__"' in path.read_text()]
    assert len(scripts) > 20
    reads = ("words(__doc__", "asked(__doc__", "ArgumentParser(")
    assert [path.name for path in scripts if not any(one in path.read_text() for one in reads)] == []


@pytest.mark.parametrize(("given", "most"), [([], 0), ([], 2), (["bf16", "16"], 2)])
def test_words_are_what_stands_behind_the_name(given, most, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["latency.py", *given])
    assert words("About.", most) == given


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (["--help"], 0, "Run: python benchmarks/latency.py"),
        (["one"], 2, "unrecognized arguments: one"),
        (["--fast"], 2, "--fast"),
    ],
)
def test_help_and_what_is_not_known_begin_nothing(given, code, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["latency.py", *given])
    with pytest.raises(SystemExit) as done:
        words("How fast.\n\nRun: python benchmarks/latency.py")
    assert done.value.code == code
    shown = capsys.readouterr()
    assert told in shown.out + shown.err


def test_a_word_that_is_not_known_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["int8.py", "txt"])
    with pytest.raises(SystemExit):
        words("About.", 2, {"text": 0, "vision": 1})
    assert "'txt' is not known; known: text, vision" in capsys.readouterr().err


def test_too_many_words_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["profile.py", "bf16", "16", "4"])
    with pytest.raises(SystemExit):
        words("About.", 2)
    assert "at most 2 words, not 3: bf16 16 4" in capsys.readouterr().err
