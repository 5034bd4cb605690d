"""The first screen claims what the intervals allow, and warns where a reader would be misled."""

import copy
from pathlib import Path

import pytest
import torch

from hydra_ensembles.evaluation import Evaluation
from hydra_ensembles.evaluation.judged import Judged
from hydra_ensembles.report.first_screen import first_screen
from hydra_ensembles.report.runs import Run
from hydra_ensembles.report.verdicts import BETTER, UNDECIDED, WORSE, verdict_of


def difference(value, low, high):
    return {"value": value, "low": low, "high": high, "p": 0.5}


EVEN = difference(0.01, -0.01, 0.03)


def told(accuracy=0.8, ece=0.06, auroc=0.71, members=3, **about):
    ood = {
        "yelp": {"auroc": auroc},
        "trec": {"auroc": auroc},
        "near": {"auroc": auroc},
        "far": {"auroc": auroc},
        "average": {"auroc": auroc},
    }
    return {
        "figures": {"answers": {"id_test": {"accuracy": accuracy, "ece": ece}}, "ood/msp": ood},
        "intervals": {"ood/msp": {"yelp": {"auroc": (auroc - 0.02, auroc + 0.02)}}},
        "rows": {"id_test": 900, "yelp": 500, "trec": 500},
        "groups": {"near": ["yelp"], "far": ["trec"], "shifts": []},
        "score": "msp",
        "resamples": 1000,
        "seed": 0,
        "about": {"members": members, "classes": 2, "allow_seen": False, "seen": [], "decisions": {}, **about},
    }


def a_run(right=EVEN, believable=EVEN, unknown=EVEN, probabilities=None, hydra=None, **more):
    models = {"base": told(accuracy=0.79, ece=0.09, auroc=0.7, members=1), "hydra": hydra or told()}
    compared = {
        "hydra minus base": {
            "answers": {"id_test": {"accuracy": right, "ece": believable}},
            "ood/msp": {"average": {"auroc": unknown}},
        }
    }
    if probabilities is not None:
        compared["hydra minus base"]["answers"]["id_test"]["nll"] = probabilities
    return Run("a run", Path(), {}, models, recipe={"name": "a run"}, compared=compared, **more)


def screen(run, **more):
    return first_screen(run, {name: name for name in run.models}, **more)


def answer(run, key):
    return next(one for one in screen(run).answers if one.key == key)


UP, DOWN = difference(0.02, 0.01, 0.03), difference(-0.02, -0.03, -0.01)


@pytest.mark.parametrize(
    ("metric", "found", "word"),
    [
        ("accuracy", UP, BETTER),
        ("accuracy", DOWN, WORSE),
        ("accuracy", EVEN, UNDECIDED),
        ("accuracy", difference(0.01, 0.0, 0.02), UNDECIDED),  # an interval that touches 0 decides nothing
        ("ece", UP, WORSE),
        ("ece", DOWN, BETTER),
        ("ece", difference(-0.001, 0.001, 0.02), UNDECIDED),  # resampling raises ECE past its own figure
    ],
)
def test_a_verdict_is_what_the_paired_interval_allows(metric, found, word):
    run = a_run(**{"right" if metric == "accuracy" else "believable": found})
    assert verdict_of(run, "answers", "id_test", metric).word == word


def test_the_sentence_names_what_is_better_worse_and_undecided():
    assert screen(a_run(right=UP, believable=UP, unknown=EVEN)).verdict == (
        "Compared with one network on the same inputs, the hydra is right more often but states its confidence less "
        "truthfully. In how well they notice unknown inputs the two cannot be told apart."
    )
    assert "cannot be told apart" in screen(a_run()).verdict
    assert "may be chance" in screen(a_run()).verdict
    for word in ("more", "less", "better", "worse"):
        assert word not in screen(a_run()).verdict


def test_worse_probabilities_are_not_kept_quiet():
    run = a_run(unknown=UP, probabilities=UP)
    assert "notices unknown inputs better but gives worse probabilities" in screen(run).verdict
    assert "(NLL) are worse than one network's" in answer(run, "believable").text


def test_without_a_comparison_there_is_no_verdict():
    run = a_run()
    silent = Run(run.name, run.directory, {}, run.models, recipe=run.recipe)
    assert "no verdict" in screen(silent).verdict
    alone = Run(run.name, run.directory, {}, {"mine": told(members=1)})
    assert "no other model" in screen(alone).verdict
    assert all(one.verdict is None for one in screen(alone).answers)


def test_figures_are_said_as_a_person_says_them():
    run = a_run()
    assert answer(run, "right").text == "80 of 100 answers are right; of the one network's, 79."
    assert "lie 6.0 percentage points apart (one network: 9.0)" in answer(run, "believable").text
    assert (
        "it ranks the unknown one as stranger in 71 of 100 pairs (coin toss: 50; one network: 70)"
        in answer(run, "unknown").text
    )
    assert "900 labelled inputs" in screen(run).compared
    assert "1,000 inputs from 2 sets it was never meant for (yelp and trec)" in screen(run).compared


def test_ninety_percent_is_counted_on_the_rows():
    confidence = torch.cat([torch.full((40,), 0.9), torch.full((60,), 0.5)]).double()
    right = torch.cat([torch.ones(30), torch.zeros(10), torch.ones(30), torch.zeros(30)]).double()
    nothing = torch.zeros(100).double()
    rows = Judged({"msp": nothing}, confidence, nothing, nothing, nothing, right, nothing, nothing)
    run = a_run(hydra=told(accuracy=0.6), evaluations={"hydra": Evaluation({"id_test": rows}, {})})
    assert "When it says about 90 %, it is right 75 % of the time (40 such answers)" in answer(run, "believable").text
    assert "too sure of itself" in answer(run, "believable").text


def test_decisions_are_counted_of_a_hundred():
    shares = {"accept": 0.81, "abstain": 0.12, "out-of-distribution": 0.07, "accuracy of accepted": 0.9}
    unknown = {"accept": 0.6, "abstain": 0.1, "out-of-distribution": 0.3}
    run = a_run(hydra=told(decisions={"id_test": shares, "yelp": unknown, "trec": unknown}))
    assert answer(run, "decides").text == (
        "Of 100 inputs it knows, it answers 81 (90 % of these rightly), says “not sure” to 12 and calls 7 unknown. "
        "Of 100 it cannot know, it still answers 60 and calls 30 unknown."
    )


def test_costs_are_told_in_multiples_of_one_network():
    def cost(params, mult_adds, ms):
        return {"params": params, "mult_adds": mult_adds, "latency_ms": {"median": ms, "low": ms, "high": ms}}

    costs = {"base": cost(100, 10, 2.0), "members": cost(270, 27, 6.0), "hydra": cost(120, 25, 4.0)}
    run = a_run(costs={"models": costs, "settings": {"batch": 4, "threads": 2}})
    assert answer(run, "cost").text == (
        "2.0 times the time, 2.5 times the arithmetic and 1.2 times the parameters of one network; its members one "
        "after another take 3.0 times the time (measured at batch 4 on 2 threads)."
    )
    untimed = {name: {**one, "latency_ms": None} for name, one in costs.items()}
    assert "time was not measured" in answer(a_run(costs={"models": untimed}), "cost").text
    busy = copy.deepcopy(costs)
    busy["hydra"]["latency_ms"]["high"] = 9.0
    scattered = a_run(costs={"models": busy})
    assert any("hydra scattered" in one for one in screen(scattered).warnings)
    assert answer(scattered, "cost").figure == "2.5 times the arithmetic"


def test_a_set_that_looks_more_known_than_known_inputs_is_warned_of():
    worse = screen(a_run(hydra=told(auroc=0.37))).warnings
    assert any(one.startswith("yelp: worse than a coin toss (37 of 100 pairs)") for one in worse)
    undecided = screen(a_run(hydra=told(auroc=0.49))).warnings
    assert any(one.startswith("yelp: no better than a coin toss") for one in undecided)
    assert not any("coin toss" in one for one in screen(a_run()).warnings)


def test_small_sets_one_seed_and_seen_sets_are_warned_of():
    small = told(seen=["test set 'yelp' shares 3 of its 500 rows with id_val"], allow_seen=True)
    small["rows"]["trec"] = 60
    warnings = " ".join(screen(a_run(hydra=small)).warnings)
    assert "Few inputs in trec (60)" in warnings
    assert "One training run" in warnings
    assert "allow_seen" in warnings
    assert "Test set 'yelp' shares 3 of its 500 rows with id_val." in warnings
    assert "One of 3 runs" in " ".join(screen(a_run(), seeds=3).warnings)


def test_the_base_is_not_the_subject_where_there_is_another():
    run = Run("a run", Path(), {}, {"members": told(), "base": told(members=1)}, recipe={"name": "a run"})
    assert (run.subject, run.base) == ("members", "base")
    assert screen(run).models["members"].startswith("3 copies of it")
