"""Head-count sweeps: every figure against a model pruned by hand, random controls, journals."""

import json
import random
from itertools import pairwise

import pytest
import torch

from families import BY_NAME, model_of
from hydra_ensembles import HeadSet, circuit_ranking, prune, taylor_ranking
from hydra_ensembles.evaluation import Protocol, evaluate
from hydra_ensembles.evaluation.analyses import AnalysisError, head_count_sweep, random_ranking
from hydra_ensembles.heads import HeadRanking
from hydra_ensembles.scoring import JournalError
from hydra_ensembles.uncertainty import auroc


def sets(name="timm", rows=24):
    case = BY_NAME[name]
    labels = torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(0))
    return (case.inputs(rows, 6, 0), labels), {"a": case.inputs(16, 6, 1), "b": case.inputs(12, 6, 2)}


def ordered(model, places):
    heads = list(HeadSet.all(model))
    removed = tuple(heads[place] for place in places)
    return HeadRanking(HeadSet.all(model), removed, tuple(0.0 for _ in removed))


@pytest.mark.parametrize("name", ["timm", "torchvision", "bert", "distilbert"])
def test_every_point_is_the_evaluation_of_the_pruned_model(name):
    model = model_of(name)
    known, unknown = sets(name)
    sweep = head_count_sweep(model, {"mine": ordered(model, [7, 0, 3, 10])}, known, unknown, keep=[12, 9, 8])
    assert [(point.line, point.kept) for point in sweep.points] == [("mine", 12), ("mine", 9), ("mine", 8)]
    heads = list(HeadSet.all(model))
    for point, gone in zip(sweep.points, ([], [7, 0, 3], [7, 0, 3, 10]), strict=True):
        keep = HeadSet.all(model).without(heads[place] for place in gone)
        assert point.heads == keep
        protocol = Protocol(known, near=unknown)
        expected = evaluate(prune(model, keep), protocol, resamples=0).figures
        for metric in ("accuracy", "nll", "ece"):
            assert point.figures["id_test"][metric] == pytest.approx(expected["answers"]["id_test"][metric], abs=1e-9)
        for metric in ("auroc", "fpr95", "aupr"):
            for place in ("a", "b", "average"):
                assert point.figures[place][metric] == pytest.approx(expected["ood/msp"][place][metric], abs=1e-9)
    assert sweep.curve("mine", "a", "auroc")[1] == (9, sweep.points[1].figures["a"]["auroc"])


def test_a_sweep_of_a_circuit_finds_the_scores_that_its_search_found():
    model = model_of("timm")
    known, unknown = sets(rows=40)
    ranking = circuit_ranking(model, known, unknown["a"], "avg", 6)
    sweep = head_count_sweep(model, {"circuit": ranking}, known, {"a": unknown["a"]})
    accuracy, separation = (dict(sweep.curve("circuit", *of)) for of in (("id_test", "accuracy"), ("a", "auroc")))
    scores = [(accuracy[kept] + separation[kept]) / 2 for kept in range(12, 5, -1)]
    assert scores == pytest.approx([ranking.start_score, *ranking.scores], abs=2 / 40)


def test_random_controls_are_nested_and_drawn_by_their_seed_from_the_layers_allowed():
    model = model_of("timm")
    known, unknown = sets()
    ranking = ordered(model, [4, 5, 6])
    sweep = head_count_sweep(
        model, {"mine": ranking}, known, unknown, random_seeds=[3, 4, 5], random_layers=[1, 2], score="entropy"
    )
    assert sweep.lines == ["mine", "random/3", "random/4", "random/5"]
    for seed in (3, 4, 5):
        line = [point.heads for point in sweep.points if point.line == f"random/{seed}"]
        assert [len(heads) for heads in line] == [12, 11, 10, 9]
        assert all(smaller <= larger for larger, smaller in pairwise(line))
        order = [head for head in HeadSet.all(model) if head.layer > 0]
        random.Random(seed).shuffle(order)
        assert line[-1] == HeadSet.all(model).without(order[:3])
    rows = sweep.control("b", "auroc")
    values = [dict(sweep.curve(f"random/{seed}", "b", "auroc"))[9] for seed in (3, 4, 5)]
    assert rows[-1] == (9, pytest.approx(torch.tensor(values).mean().item()), pytest.approx(torch.tensor(values).std()))
    assert rows[0][2] == pytest.approx(0)  # nothing is removed yet
    written = json.loads(json.dumps(sweep.to_json()))
    assert written["random"][-1]["mean"]["b"]["auroc"] == pytest.approx(rows[-1][1])
    assert [point["kept"] for point in written["lines"]["mine"]] == [12, 11, 10, 9]


def test_a_head_set_of_several_lines_is_measured_once():
    model, asked = model_of("timm"), []
    known, unknown = sets()

    def counting(member):
        asked.append(member.heads)
        return member

    lines = {"one": ordered(model, [1, 2, 3]), "two": ordered(model, [2, 1, 5])}
    sweep = head_count_sweep(model, lines, known, unknown, then=counting)
    assert len(sweep.points) == 8
    assert len(asked) == len(set(asked)) == 6  # nothing removed, and the first two in either order


def test_rankings_per_layer_make_a_line_together():
    model = model_of("timm")
    known, unknown = sets()
    layered = [taylor_ranking(model, known, number) for number in (1, 2)]
    sweep = head_count_sweep(model, {"taylor": layered}, known, unknown)
    assert [point.kept for point in sweep.points] == [12, 9, 6]
    assert [point.heads for point in sweep.points[1:]] == [layered[0].keep(9), layered[1].keep(6)]
    with pytest.raises(AnalysisError, match="line 'taylor' cannot keep 8 heads: this ranking holds at 6 removals only"):
        head_count_sweep(model, {"taylor": layered}, known, unknown, keep=[9, 8])


def test_a_killed_sweep_goes_on_and_another_takes_what_is_there(tmp_path):
    model, path, asked = model_of("timm"), tmp_path / "sweep.jsonl", []
    known, unknown = sets()

    def dying(member):
        asked.append(member.heads)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return member

    kept = {"journal": path, "then": dying, "then_is": "nothing"}
    lines = {"mine": ordered(model, [7, 0, 3])}
    with pytest.raises(KeyboardInterrupt):
        head_count_sweep(model, lines, known, unknown, **kept)
    assert len(path.read_text().splitlines()) == 3
    resumed = head_count_sweep(model, lines, known, unknown, **kept)
    assert len(asked) == 5
    assert resumed == head_count_sweep(model, lines, known, unknown)
    head_count_sweep(model, {"other": ordered(model, [7, 0, 5])}, known, unknown, **kept)
    assert len(asked) == 6
    for change, message in (
        ({"score": "energy"}, "its score is 'msp', now 'energy'"),
        ({"model": model_of("timm-mean")}, "its model is"),
        ({"ood_data": {"a": unknown["b"]}}, "its ood_data is"),
        ({"then": None, "then_is": ""}, "its then is 'nothing'"),
    ):
        settings = {"model": model, "rankings": lines, "id_data": known, "ood_data": unknown, **kept, **change}
        with pytest.raises(JournalError, match=message):
            head_count_sweep(**settings)


def test_what_is_done_to_pruned_models_comes_before_measuring(tmp_path):
    model = model_of("timm")
    known, unknown = sets()

    def quieter(member):
        with torch.no_grad():
            member.model.head.weight.mul_(1e-3)
            member.model.head.bias.zero_()
        return member

    lines = {"mine": ordered(model, [7])}
    sweep = head_count_sweep(model, lines, known, unknown, then=quieter)
    assert sweep.points[0].figures["id_test"]["nll"] == pytest.approx(torch.tensor(5.0).log().item(), abs=0.02)
    with pytest.raises(AnalysisError, match="describe it in then_is"):
        head_count_sweep(model, lines, known, unknown, then=quieter, journal=tmp_path / "j.jsonl")


def test_auroc_is_counted_on_the_rows_given():
    model = model_of("timm")
    known, unknown = sets()
    sweep = head_count_sweep(model, {"mine": ordered(model, [7])}, known, unknown, keep=[11])
    member = prune(model, sweep.points[0].heads)
    with torch.no_grad():
        confidence = [member(x).double().softmax(-1).amax(-1) for x in (known[0], unknown["a"])]
    assert sweep.points[0].figures["a"]["auroc"] == pytest.approx(auroc(*confidence).item(), abs=1 / (24 * 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep": [4]}, "line 'mine' cannot keep 4 heads: the ranking removes 2 heads, 8 are asked for"),
        ({"score": "luck"}, "score 'luck' is not known"),
        ({"rankings": {}}, "rankings of one model"),
        ({"rankings": {"mine": []}}, "one or more a line"),
        ({"rankings": {"random/1": None}}, "named like a random control"),
        ({"ood_data": {}}, "no unknown set"),
        ({"id_data": torch.zeros(4, 3, 16, 16)}, "id_data has no labels"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(change, message):
    model = model_of("timm")
    known, unknown = sets()
    settings = {"rankings": {"mine": ordered(model, [1, 2])}, "id_data": known, "ood_data": unknown} | change
    settings["rankings"] = {
        n: line if line is not None else ordered(model, [1]) for n, line in settings["rankings"].items()
    }
    with pytest.raises(AnalysisError, match=message) as caught:
        head_count_sweep(model, **settings)
    assert "\n" not in str(caught.value)


def test_a_random_order_has_every_head_once():
    start = HeadSet.all(model_of("timm"))
    ranking = random_ranking(start, 1)
    assert sorted(ranking.removed) == list(start)
    assert ranking.removed != random_ranking(start, 2).removed


def test_labels_of_unknown_inputs_are_not_looked_at():
    model, lines = model_of("timm"), {"mine": ordered(model_of("timm"), [7])}
    known, unknown = sets()
    strange = {name: (inputs, torch.full((len(inputs),), 900)) for name, inputs in unknown.items()}
    assert head_count_sweep(model, lines, known, strange) == head_count_sweep(model, lines, known, unknown)
