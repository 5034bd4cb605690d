"""Search on Ray: the ranking of the local search, whatever happens to workers and driver."""

import copy
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from families import model_of, perturbed
from hydra_ensembles import scale
from hydra_ensembles.scale import search
from hydra_ensembles.scale.cluster import ScaleError
from hydra_ensembles.scoring import ScoringError, circuit_ranking
from ray_workers import signal_one

TESTS = Path(__file__).parent.parent


def images(rows, seed, shift=0.0):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) + shift


KNOWN = images(64, 0), torch.randint(0, 5, (64,), generator=torch.Generator().manual_seed(0))
UNKNOWN = images(40, 1, 0.5)


def same(one, other):
    return (one.removed, one.scores, one.start_score) == (other.removed, other.scores, other.start_score)


@pytest.mark.parametrize("how", ["fast", "lazy"])
def test_two_workers_give_the_local_ranking(two_cpus, how):
    model = model_of("timm")
    here = circuit_ranking(model, KNOWN, UNKNOWN, "avg", 5, search=how, batch_size=8)
    there = scale.circuit_ranking(model, KNOWN, UNKNOWN, "avg", 5, search=how, batch_size=8, workers=2)
    assert same(here, there)
    assert there.how["block_forwards"] == pytest.approx(here.how["block_forwards"])


def test_companions_travel_too(two_cpus):
    model, companion = model_of("timm"), perturbed(copy.deepcopy(model_of("timm")), seed=2)
    options = {"objective": "acc", "remove": 2, "companions": [companion], "batch_size": 16}
    assert same(circuit_ranking(model, KNOWN, **options), scale.circuit_ranking(model, KNOWN, workers=2, **options))


def test_a_killed_worker_changes_nothing(two_cpus, tmp_path, monkeypatch):
    model = model_of("timm")
    here = circuit_ranking(model, KNOWN, UNKNOWN, "ood", 4, batch_size=4)
    killed = []
    asked = search.Crew.ask

    def ask_and_kill(self, *question):
        if self.question == 1:  # in the midst of the second step
            threading.Thread(target=lambda: killed.append(signal_one("Searcher"))).start()
        return asked(self, *question)

    monkeypatch.setattr(search.Crew, "ask", ask_and_kill)
    assert same(here, scale.circuit_ranking(model, KNOWN, UNKNOWN, "ood", 4, batch_size=4, workers=2))
    assert len(killed) == 1


def test_a_worker_that_hangs_is_not_waited_for(two_cpus, monkeypatch):
    model = model_of("timm")
    here = circuit_ranking(model, KNOWN, UNKNOWN, "acc", 3, batch_size=8)
    monkeypatch.setattr(search, "LATE_S", 0.5)
    asked, stopped = search.Crew.ask, []

    def ask_and_stop(self, *question):
        if self.question == 1:
            stopped.append(signal_one("Searcher", signal.SIGSTOP))
        return asked(self, *question)

    monkeypatch.setattr(search.Crew, "ask", ask_and_stop)
    try:
        assert same(here, scale.circuit_ranking(model, KNOWN, UNKNOWN, "acc", 3, batch_size=8, workers=2))
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)


def test_a_killed_driver_goes_on_here_or_there(two_cpus, tmp_path):
    """The journal of a search on Ray is that of a local one."""
    script, journal = tmp_path / "driver.py", tmp_path / "journal.jsonl"
    script.write_text(
        textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = [{str(TESTS)!r}, {str(Path(__file__).parent)!r}]
        import torch
        torch.set_num_threads(1)
        from test_search import KNOWN, UNKNOWN
        from families import model_of
        from hydra_ensembles.scale import circuit_ranking
        from hydra_ensembles.scoring.journal import Journal
        append = Journal.append
        def and_die(self, entry):
            append(self, entry)
            if len(self.entries) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        Journal.append = and_die
        circuit_ranking(model_of("timm"), KNOWN, UNKNOWN, "avg", 4, workers=2, journal={str(journal)!r})
        """)
    )
    address = two_cpus.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:")
    driver = subprocess.run(
        [sys.executable, script], env={**os.environ, "RAY_ADDRESS": address}, capture_output=True, text=True
    )
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    assert len(journal.read_text().splitlines()) == 3
    model = model_of("timm")
    resumed = scale.circuit_ranking(model, KNOWN, UNKNOWN, "avg", 3, workers=2, journal=journal)
    assert len(journal.read_text().splitlines()) == 4
    assert same(resumed, circuit_ranking(model, KNOWN, UNKNOWN, "avg", 3))
    assert same(
        circuit_ranking(model, KNOWN, UNKNOWN, "avg", 4, journal=journal),
        circuit_ranking(model, KNOWN, UNKNOWN, "avg", 4),
    )


def test_errors_of_workers_are_ours(two_cpus):
    broken = images(8, 3)
    broken[5] = float("nan")
    with pytest.raises(ScoringError, match=r"^the model gives logits that are not finite"):
        scale.circuit_ranking(model_of("timm"), KNOWN, broken, "avg", 1, workers=1)
    with pytest.raises(ScaleError, match="9 workers with 2 threads each do not fit: Ray has 2 CPUs"):
        scale.circuit_ranking(model_of("timm"), KNOWN, UNKNOWN, "avg", 1, workers=9, threads=2)
    with pytest.raises(ScoringError, match="with workers take fast or lazy"):
        scale.circuit_ranking(model_of("timm"), KNOWN, UNKNOWN, "avg", 1, workers=1, search="plain")
