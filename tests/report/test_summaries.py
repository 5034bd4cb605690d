"""Summaries: runs of one recipe over seeds, data sets together, and what analyses give to tables."""

import copy
import json

import numpy as np
import pytest
import torch

from hydra_ensembles.evaluation import Evaluation
from hydra_ensembles.evaluation.analyses import CentroidDistances, Diversity
from hydra_ensembles.evaluation.judged import judged
from hydra_ensembles.heads import Head
from hydra_ensembles.report import SummaryError, centroid_summary, diversity_summary, joined, paper_table, summarise

GROUPS = {"near": ["yelp"], "far": ["trec", "rte"], "shifts": ["swap-1", "delete-1", "swap-3"]}
MEMBERS = {"base": 1, "hydra": 3}


def evaluation(members, seed, resamples=20):
    generator = torch.Generator().manual_seed(seed)

    def logits(shift):
        return torch.randn(40, members, 4, generator=generator) * 2 + shift

    labels = torch.randint(0, 4, (40,), generator=generator)
    sets = {"id_test": judged(logits(0.0), labels)}
    sets |= {name: judged(logits(0.0), labels) for name in GROUPS["shifts"]}
    sets |= {name: judged(logits(0.0) / 2) for name in ("yelp", "trec", "rte")}
    return Evaluation(sets, GROUPS, about={"members": members}, resamples=resamples, seed=seed)


def run(seed, **recipe):
    """A `results.json`, written and read."""
    models = {name: evaluation(members, 10 * seed + members).to_json() for name, members in MEMBERS.items()}
    return json.loads(json.dumps({"recipe": {"name": "r", "seed": seed, **recipe}, "models": models, "compared": {}}))


def test_one_run_keeps_its_figures_in_the_units_of_a_summary_with_intervals():
    results = run(0)
    found, figures = summarise([results])["methods"]["hydra"], results["models"]["hydra"]["figures"]
    intervals = results["models"]["hydra"]["intervals"]
    answers, ood = figures["answers"]["id_test"], figures["ood/msp"]
    assert found["accuracy"]["mean"] == pytest.approx(100 * answers["accuracy"])
    assert found["ece"]["mean"] == answers["ece"]
    assert found["auroc"]["mean"] == pytest.approx(100 * np.mean([ood[n]["auroc"] for n in ("yelp", "trec", "rte")]))
    assert found["fpr95_far"]["mean"] == pytest.approx(100 * np.mean([ood[n]["fpr95"] for n in ("trec", "rte")]))
    assert found["aupr/rte"]["mean"] == pytest.approx(100 * ood["rte"]["aupr"])
    assert found["auroc_near"]["interval"] == pytest.approx(
        [100 * end for end in intervals["ood/msp"]["near"]["auroc"]]
    )
    assert found["nll"]["interval"] == pytest.approx(intervals["answers"]["id_test"]["nll"])
    assert all(entry["seeds"] == 1 and entry["std"] is None for entry in found.values())


def test_shifts_are_averaged_by_severity():
    results = run(0)
    found, answers = summarise([results])["methods"]["base"], results["models"]["base"]["figures"]["answers"]
    assert found["accuracy_severity_1"]["mean"] == pytest.approx(
        100 * (answers["swap-1"]["accuracy"] + answers["delete-1"]["accuracy"]) / 2
    )
    assert found["brier_severity_3"]["mean"] == pytest.approx(answers["swap-3"]["brier"])
    assert "brier_severity_2" not in found


def test_runs_with_other_seeds_give_mean_and_sample_standard_deviation():
    runs = [run(seed) for seed in (1, 2, 3)]
    found = summarise(runs)["methods"]["hydra"]
    values = [100 * results["models"]["hydra"]["figures"]["ood/msp"]["average"]["auroc"] for results in runs]
    assert found["auroc"] == {
        "mean": pytest.approx(np.mean(values)),
        "std": pytest.approx(np.std(values, ddof=1)),
        "seeds": 3,
    }


def test_diversity_on_unknown_sets_is_their_mean_and_one_network_has_none():
    results = run(0)
    methods, figures = summarise([results])["methods"], results["models"]["hydra"]["figures"]["diversity"]
    expected = np.mean([figures[name]["disagreement"] for name in ("yelp", "trec", "rte")])
    assert methods["hydra"]["disagreement_ood"]["mean"] == pytest.approx(expected)
    assert not any("disagreement" in key or "mutual_information" in key for key in methods["base"])


def test_another_score_can_tell_unknown_inputs():
    results = run(0)
    expected = 100 * results["models"]["hydra"]["figures"]["ood/entropy"]["average"]["auroc"]
    assert summarise([results], score="entropy")["methods"]["hydra"]["auroc"]["mean"] == pytest.approx(expected)
    with pytest.raises(SummaryError, match=r"not evaluated with score 'vim'; there are .*msp"):
        summarise([results], score="vim")


def test_what_is_not_runs_of_one_recipe_with_different_seeds_is_refused():
    with pytest.raises(SummaryError, match="no runs"):
        summarise([])
    with pytest.raises(SummaryError, match="differ in members; only the seed may"):
        summarise([run(0, members=3), run(1, members=5)])
    with pytest.raises(SummaryError, match="seeds 2, 2"):
        summarise([run(2), run(2)])


def test_what_is_no_run_is_no_summary_and_no_table():
    with pytest.raises(SummaryError, match="a run without 'recipe' and 'models'"):
        summarise([{}])
    for strange in ({"x": 1}, {}):
        with pytest.raises(SummaryError, match="what summarise gives"):
            paper_table(2, strange)


def test_costs_and_heads_come_from_the_run_where_it_has_them():
    results = run(0)
    latency = {"base": 10.0, "hydra": 12.5}
    results["costs"] = {
        "models": {
            name: {"params": 4_000_000, "mult_adds": 10**9, "latency_ms": {"median": ms, "low": ms - 1, "high": ms + 1}}
            for name, ms in latency.items()
        },
        "settings": {"batch": 4, "dtype": "float32", "threads": 2, "rounds": 5, "text_tokens": None},
    }
    kept = {"text": {"num_heads": [4, 4], "kept": [[0, 1], [3]]}}
    results["heads"] = {"members": [kept, copy.deepcopy(kept)], "names": ["acc", "ood"]}
    summary = summarise([results])
    assert summary["methods"]["hydra"]["latency_ratio"]["mean"] == 1.25
    assert summary["methods"]["base"]["heads"] == "8"
    assert summary["methods"]["hydra"]["heads"] == "3×2"
    assert "| hydra | – | – | – | 12.50 | 4.00 | 1.00 |" in paper_table(7, summary).markdown()


def test_joined_data_sets_keep_their_figures_and_give_the_mean_where_all_have_one():
    first = {"methods": {"a": {"accuracy": {"mean": 80.0, "std": 1.0, "seeds": 3}, "heads": "12", "auroc/x": 3.0}}}
    second = {"methods": {"a": {"accuracy": {"mean": 90.0, "std": 1.0, "seeds": 2}, "nll": {"mean": 1.0}}}}
    found = joined({"one": first, "two": second})["methods"]["a"]
    assert found["accuracy"] == {"mean": 85.0, "std": None, "seeds": 2}
    assert found["accuracy/two"]["mean"] == 90.0
    assert found["heads"] == "12"
    assert "nll" not in found
    assert "auroc" not in found


def test_centroids_are_averaged_over_the_last_layer_as_the_analysis_does():
    heads = (Head("v", 0, 0), Head("v", 1, 0), Head("v", 1, 2))
    rows = {"mnist": (1.0, 2.0, 4.0), "svhn": (5.0, 6.0, 9.0)}
    distances = CentroidDistances(heads, rows, {"mnist": (9.0, 1.0, 1.0), "svhn": (9.0, 3.0, 3.0)}, rows, (4, 4, 4), {})
    found = centroid_summary({"dense": json.loads(json.dumps(distances.to_json()))})["methods"]["dense"]
    for distance in ("euclidean", "mahalanobis"):
        for name, expected in distances.average(distance).items():
            assert found[f"{distance}/{name}"]["mean"] == pytest.approx(expected)
    assert found["mahalanobis"]["mean"] == pytest.approx(2.0)


def test_a_diversity_analysis_becomes_a_fused_and_a_not_fused_row():
    def figures(shift):
        known = {"accuracy": 0.8 + shift, "nll": 0.5, "mutual_information": 0.05, "disagreement": 0.1}
        unknown = {"auroc": 0.7 + shift, "fpr95": 0.4, "aupr": 0.6, "mutual_information": 0.12, "disagreement": 0.4}
        return {"id_test": known, "yelp": unknown, "average": unknown}

    analysis = Diversity(figures(0.0), figures(0.01), ((1.0,),), ((0.0,),), "average", "msp")
    summary = diversity_summary({"hydra": analysis.to_json()})
    table = paper_table(11, summary).markdown()
    assert "| hydra (fused) | **81.00** | – | **0.50** | – | – | **71.00** | **40.00** | **60.00** |" in table
    assert "| hydra (not fused) | <u>80.00</u> | – |" in table
    assert "**0.050** | **0.100** | **0.120** | **0.400** |" in paper_table(9, summary).markdown()
