"""Ray of our own: begun again where a busy machine was too slow for it."""

from types import SimpleNamespace

import pytest

from hydra_ensembles.scale import cluster as room


@pytest.fixture
def slow_ray(monkeypatch):
    """A Ray that does not start in time the first `late` times."""

    def made(late, message="The current node timed out during startup."):
        happened = []

        def init(**settings):
            happened.append("init")
            if happened.count("init") <= late:
                raise Exception(message)

        fake = SimpleNamespace(init=init, shutdown=lambda: happened.append("shutdown"), is_initialized=lambda: False)
        monkeypatch.setattr(room, "import_extra", lambda *_: fake)
        monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        return happened

    return made


def test_a_late_start_is_tried_again(slow_ray):
    happened = slow_ray(late=2)
    with room.cluster(1):
        pass
    assert happened == ["init", "shutdown", "init", "shutdown", "init", "shutdown"]


def test_what_never_starts_is_said_in_one_line(slow_ray):
    slow_ray(late=99)
    with pytest.raises(room.ScaleError, match="did not start within its 30 seconds, 3 times over"), room.cluster(1):
        pass


def test_another_error_is_not_tried_again(slow_ray):
    happened = slow_ray(late=99, message="no such resource")
    with pytest.raises(Exception, match="no such resource"), room.cluster(1):
        pass
    assert happened == ["init", "shutdown"]


def test_a_ray_that_somebody_else_started_here_is_not_joined(monkeypatch):
    asked = {}
    fake = SimpleNamespace(init=asked.update, shutdown=lambda: None, is_initialized=lambda: False)
    monkeypatch.setattr(room, "import_extra", lambda *_: fake)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with room.cluster(2):
        assert asked["address"] == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with room.cluster():
        assert asked["address"] == "10.0.0.1:6379"
