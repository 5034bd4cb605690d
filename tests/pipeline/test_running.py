"""A recipe runs to the end, once; what is done is not done again; a killed run goes on to the same result."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from hydra_ensembles import HeadSet, Hydra, Member, describe, load_model
from hydra_ensembles.data import open_data
from hydra_ensembles.data.rows import Rows
from hydra_ensembles.errors import HydraError, HydraWarning
from hydra_ensembles.evaluation import Evaluation
from hydra_ensembles.heads import layer_divergence, overlap
from hydra_ensembles.pipeline import SplitError, Splits, parse_recipe, planned, read_recipe, run
from hydra_ensembles.pipeline.checks import check_fits, splits_of
from hydra_ensembles.pipeline.making import unknown_source
from hydra_ensembles.pipeline.splits import CHOOSING
from hydra_ensembles.pipeline.stage import Kept, Stage, StageError
from hydra_ensembles.pipeline.stages import stages_of
from hydra_ensembles.store import StoreError, tensors_digest
from kitchen import CLASSES, NULL, RECIPE, SETS, pictures, write_folders
from patience import PATIENCE_S
from tiny_sets import png

STAGES = ["base", "ranking-acc", "ranking-avg", "members", "member-0", "member-1", "fusion", "decisions",
          "temperature-base", "temperature-members", "evaluation-base", "evaluation-members", "evaluation-hydra",
          "costs", "results"]  # fmt: skip
BASE = {"temperature-base", "evaluation-base"}


def told_by(recipe, output, **options):
    told = {}
    done = run(recipe, output, tell=lambda name, what, _: told.update({name: what}), progress=False, **options)
    return done, told


def figures(done):
    """Everything that a run found out, to the bit."""
    hydra = Hydra.load(done.directory / "hydra")
    return done.results["models"], done.results["compared"], tensors_digest(hydra.state_dict().items()), hydra.fitted


@pytest.fixture(scope="session")
def finished(ingredients, tmp_path_factory):
    """One undisturbed run that several tests look at; they must not change it."""
    place, before = tmp_path_factory.mktemp("finished"), Path.cwd()
    shutil.copytree(ingredients, place, dirs_exist_ok=True)
    os.chdir(place)
    try:
        done, told = told_by(parse_recipe(yaml.safe_dump(RECIPE)), place / "out")
    finally:
        os.chdir(before)
    return place, done, told


def test_a_recipe_runs_to_the_end(finished):
    _, done, told = finished
    assert told == dict.fromkeys(STAGES, "done")
    assert json.loads((done.directory / "results.json").read_text()) == done.results
    models = done.results["models"]
    assert list(models) == ["base", "members", "hydra"]
    for found in models.values():
        assert set(found["figures"]["ood/msp"]) == {"close", "away", "near", "far", "average"}
        assert set(found["figures"]["answers"]) == {"id_test", "brightness-2", "shifts"}
    assert models["hydra"]["about"]["members"] == 2
    for made in (done.results, models["hydra"]["about"]):
        assert made["made_with"]["versions"]["torch"] == torch.__version__
    assert set(models["hydra"]["about"]["fitted"]) == {"temperature", "ood", "conformal"}
    assert set(done.results["compared"]) == {"members minus base", "hydra minus base"}
    hydra = Hydra.load(done.directory / "hydra")
    assert hydra.provenance["chosen_with"] == [{"source": "oodval.npz"}]
    assert [len(list(heads)) for heads in hydra.heads] == [9, 9]


def test_results_say_what_every_model_costs_which_heads_it_keeps_and_how_long_stages_took(finished):
    _, done, _ = finished
    base, hydra = Member.load(done.stages["base"] / "model"), Hydra.load(done.directory / "hydra")
    members = [Member.load(done.stages[f"member-{m}"] / "member") for m in range(2)]
    found = done.results["costs"]
    params = {name: cost["params"] for name, cost in found["models"].items()}
    assert params == {"base": numbers_in(base), "members": sum(map(numbers_in, members)), "hydra": numbers_in(hydra)}
    mult_adds = {name: cost["mult_adds"] for name, cost in found["models"].items()}
    assert mult_adds["base"] == describe(base).total.mult_adds
    assert mult_adds["members"] == sum(describe(member).total.mult_adds for member in members)
    assert mult_adds["base"] < mult_adds["hydra"] < mult_adds["members"]  # one stem, and a last block that is read
    assert all(cost["latency_ms"]["median"] > 0 for cost in found["models"].values())
    threads = torch.get_num_threads()
    assert found["settings"] == {"batch": 2, "dtype": "float32", "threads": threads, "rounds": 3, "text_tokens": None}
    heads = done.results["heads"]
    assert [HeadSet.from_json(kept) for kept in heads["members"]] == [member.heads for member in members]
    assert heads["names"] == ["acc", "avg"]
    assert heads["overlap"][0][1] == overlap(*hydra.heads)
    assert heads["divergence"][1][0] == layer_divergence(*hydra.heads)
    assert list(done.results["seconds"]) == STAGES[:-1]
    assert done.results["seconds"]["base"] == Kept(done.stages["base"]).seconds


def numbers_in(model):
    return sum(p.numel() for p in model.parameters())


def test_evaluations_are_published_beside_the_hydra(finished, monkeypatch):
    place, done, _ = finished
    monkeypatch.chdir(place)
    labels = open_data("test.npz").labels
    for model, told in done.results["models"].items():
        found = Evaluation.load(done.directory / "evaluations" / model)
        assert found.figures == told["figures"]
        assert found.judged["id_test"].label.tolist() == labels.tolist()
        right = found.judged["id_test"].answer == labels
        assert float(right.double().mean()) == told["figures"]["answers"]["id_test"]["accuracy"]


def test_a_run_that_stops_early_publishes_what_there_is(finished, kitchen):
    place, undisturbed, _ = finished
    out = kitchen.place / "out"
    shutil.copytree(place / "out" / "stages", out / "stages")
    told_by(read_recipe(kitchen.recipe()), out, until="evaluation-members")
    assert sorted(path.name for path in (out / "evaluations").iterdir()) == ["base", "members"]
    assert Hydra.load(out / "hydra").fitted == Hydra.load(undisturbed.directory / "hydra").fitted
    assert not (out / "results.json").exists()


def test_costs_are_those_of_the_evaluated_models_alone_and_go_without_latency(kitchen):
    changes = {"finetuning": None, "backbone__finetune": None, "data__train": None, "decisions": NULL}
    recipe = read_recipe(kitchen.recipe(**changes, evaluation__models=["hydra"], evaluation__latency_rounds=0))
    done, _ = told_by(recipe, "out")
    (cost,) = done.results["costs"]["models"].values()
    assert cost["latency_ms"] is None
    assert cost["params"] == numbers_in(Hydra.load("out/hydra"))
    assert done.results["costs"]["settings"]["rounds"] == 0


COMPUTING = {
    "base": "making.finetune",
    "ranking-avg": "making.circuit_ranking",
    "member-1": "making.finetune",
    "decisions": "making.answers",
    "temperature-members": "making.answers",
    "evaluation-base": "judging.evaluate",
    "evaluation-members": "judging.evaluate",
    "evaluation-hydra": "judging.evaluate",
    "costs": "judging.costs",
}


@pytest.mark.parametrize(("stage", "work"), COMPUTING.items())
def test_models_search_and_answer_where_a_run_is_told(stage, work, finished, kitchen, monkeypatch):
    """A device without numbers stands in for a GPU: the work that a stage hands its models to is looked at."""

    class Seen(Exception):
        pass

    def look(model, *_, **__):
        models = model.values() if isinstance(model, dict) else [model]
        flat = [one for given in models for one in (given if isinstance(given, list) else [given])]
        raise Seen({next(one.parameters()).device.type for one in flat})

    place, undisturbed, _ = finished
    shutil.copytree(place / "out" / "stages", kitchen.place / "out" / "stages")
    shutil.rmtree(kitchen.place / "out" / "stages" / undisturbed.stages[stage].name)
    monkeypatch.setattr(f"hydra_ensembles.pipeline.{work}", look)
    with pytest.raises(Seen) as seen:
        run(read_recipe(kitchen.recipe()), "out", until=stage, device="meta", progress=False)
    # Where a training computes is for Accelerate to say.
    assert seen.value.args == ({"cpu"} if work == "making.finetune" else {"meta"},)


def test_a_second_run_does_nothing(finished, monkeypatch):
    place, done, _ = finished
    monkeypatch.chdir(place)
    before = {path: path.stat().st_mtime_ns for path in done.directory.rglob("*") if path.is_file()}
    again, told = told_by(parse_recipe(yaml.safe_dump(RECIPE)), place / "out")
    assert set(told.values()) == {"was done before"}
    assert before == {path: path.stat().st_mtime_ns for path in done.directory.rglob("*") if path.is_file()}
    assert figures(again) == figures(done)


def test_every_artefact_says_how_it_came_about(finished):
    _, done, _ = finished
    for name, directory in done.stages.items():
        about = json.loads((directory / "provenance.json").read_text())
        assert about["stage"] == name
        assert about["seed"] == RECIPE["seed"]
        assert about["versions"]["torch"]
        assert about["versions"]["hydra_ensembles"]
        assert about["dtype"] == "float32"
        assert about.get("device") == (None if name.startswith(("base", "member-")) else "cpu")
        assert directory.name == f"{name}-{about['key']}"
        assert len(about["recipe_hash"]) == 16
        stage = next(one for one in stages_of(parse_recipe(yaml.safe_dump(RECIPE))) if one.name == name)
        assert set(about["data"]) == set(stage.reads)
        assert set(about["after"]) == set(stage.after)


CHANGES = {
    "data__id_test": ("test.npz[:12]", {"evaluation-base", "evaluation-members", "evaluation-hydra", "results"}),
    "decisions__accept": (0.5, {"decisions", "evaluation-hydra", "results"}),
    "fusion": ({"mlp": "grouped"}, {"fusion", "decisions", "evaluation-hydra", "costs", "results"}),
    "finetuning__learning_rate": (0.02, set(STAGES[4:]) - BASE),
    "ranking__search": ("plain", set(STAGES[1:]) - BASE),
    "data__ood_val": ("oodval.npz[:8]", set(STAGES[2:]) - {"temperature-base"}),  # accuracy does not look
    "evaluation__latency_rounds": (0, {"costs", "results"}),
    "seed": (4, set(STAGES)),
}


def test_another_objective_leaves_the_circuits_that_are_there(finished, kitchen):
    place, _, _ = finished
    os.chdir(place)
    recipe = read_recipe(kitchen.recipe(ranking__objectives=["acc", "ood", "avg"], members__number=3))
    done = [one.stage.name for one in planned(recipe, place / "out") if one.kept.is_done]
    assert done == ["base", "ranking-acc", "ranking-avg", "temperature-base", "evaluation-base"]


@pytest.mark.parametrize("change", CHANGES)
def test_only_what_depends_on_a_change_is_done_again(finished, kitchen, change):
    place, _, _ = finished
    value, expected = CHANGES[change]
    os.chdir(place)
    recipe = read_recipe(kitchen.recipe(**{change: value}))
    assert {one.stage.name for one in planned(recipe, place / "out") if not one.kept.is_done} == expected


def test_other_content_under_the_same_name_is_noticed(finished, tmp_path, monkeypatch):
    place, _, _ = finished
    shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    recipe = parse_recipe(yaml.safe_dump(RECIPE))
    np.savez("near.npz", **pictures(99, 12))
    changed = {one.stage.name for one in planned(recipe, "out") if not one.kept.is_done}
    assert changed == {"evaluation-base", "evaluation-members", "evaluation-hydra", "results"}


def test_other_images_behind_the_same_file_of_paths_are_noticed(kitchen):
    """The file that names them does not change."""
    (kitchen.place / "images").mkdir()
    for row, pixels in enumerate(pictures(5, 12)["images"]):
        Image.fromarray(pixels).save(kitchen.place / "images" / f"{row}.png")
    (kitchen.place / "near.csv").write_text("image\n" + "".join(f"images/{row}.png\n" for row in range(12)))
    recipe = read_recipe(kitchen.recipe(data__near={"close": "near.csv"}))
    before = Splits(recipe.data, kitchen.place / "hashes.json").digest("near/close")
    assert Splits(recipe.data, kitchen.place / "hashes.json").digest("near/close") == before
    Image.fromarray(pictures(6, 1)["images"][0]).save(kitchen.place / "images" / "3.png")
    assert Splits(recipe.data, kitchen.place / "hashes.json").digest("near/close") != before


def test_a_class_with_another_name_is_noticed(kitchen):
    splits = {"train": "a", "id_val": "b", "id_test": "c"}
    for seed, folder in enumerate(splits.values()):
        write_folders(kitchen.place, folder, CLASSES, 10 * seed)
    named = {f"data__{split}": folder for split, folder in splits.items()}
    recipe = read_recipe(kitchen.recipe(**named, data__id_cal=None))
    before = next(one.key for one in planned(recipe, "out"))
    for folder in splits.values():
        (kitchen.place / folder / CLASSES[-1]).rename(kitchen.place / folder / "doge")
    assert next(one.key for one in planned(recipe, "out")) != before


def test_what_is_damaged_is_not_published_over_what_is_whole(finished, tmp_path, monkeypatch):
    place, _, _ = finished
    shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    recipe = parse_recipe(yaml.safe_dump(RECIPE))
    (stored,) = Path("out/stages").glob("decisions-*/hydra/config.json")
    published = Path("out/hydra/config.json").read_bytes()
    stored.write_bytes(stored.read_bytes()[:50])
    with pytest.raises(StoreError, match=r"delete out/stages/decisions-.* and run again"):
        told_by(recipe, "out")
    assert Path("out/hydra/config.json").read_bytes() == published
    (done,) = Path("out/stages").glob("base-*/provenance.json")
    done.write_text("{")
    assert not next(one.kept.is_done for one in planned(recipe, "out") if one.stage.name == "base")


def test_a_damaged_file_of_an_earlier_stage_is_named(finished, tmp_path, monkeypatch):
    place, _, _ = finished
    shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (costs,) = Path("out/stages").glob("costs-*/costs.json")
    costs.write_text('{"base": ')
    (results,) = Path("out/stages").glob("results-*/provenance.json")
    results.unlink()
    with pytest.raises(StageError, match=r"costs\.json cannot be read .*; delete out/stages/costs-.* and run again"):
        told_by(parse_recipe(yaml.safe_dump(RECIPE)), "out")


@pytest.mark.parametrize("moment", ["in the middle", "before it is marked as done"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_killed_in_any_stage_goes_on_to_the_same_result(finished, kitchen, stage, moment):
    place, undisturbed, _ = finished
    recipe, out = read_recipe(kitchen.recipe()), kitchen.place / "out"
    # The stages before are taken over as they are: the kill is what this is about.
    for name in STAGES[: STAGES.index(stage)]:
        kept = Path("stages") / undisturbed.stages[name].name
        shutil.copytree(place / "out" / kept, out / kept)
    seconds = json.loads((undisturbed.stages[stage] / "provenance.json").read_text())["seconds"]

    def killed_run():
        if moment == "in the middle":
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))

            def tell(name, what, _):
                if (name, what) == (stage, "started"):
                    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds / 2))
        else:
            tell = None
            finish = Kept.finish

            def finish_or_die(kept, done, *arguments):
                if done.name == stage:
                    os.kill(os.getpid(), signal.SIGKILL)
                finish(kept, done, *arguments)

            Kept.finish = finish_or_die
        run(recipe, out, until=stage, tell=tell, progress=False)

    child = multiprocessing.get_context("fork").Process(target=killed_run)
    child.start()
    child.join(timeout=PATIENCE_S)
    if moment != "in the middle":  # a timer may ring after a quick stage is over
        assert child.exitcode == -signal.SIGKILL
        assert not (out / "stages" / undisturbed.stages[stage].name / "provenance.json").exists()
    again, told = told_by(recipe, out, until=stage)
    assert all(told[name] == "was done before" for name in STAGES[: STAGES.index(stage)])
    assert content(again.stages[stage]) == content(undisturbed.stages[stage])


def content(directory):
    """Every file that a stage left, but for times, and scratch of ours."""
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {
        name: timeless(json.loads(path.read_text()))
        if path.suffix == ".json"
        else tensors_digest(sorted(load_file(path).items()))
        for name, path in found.items()
        if path.suffix in (".json", ".safetensors") and name != "provenance.json"
    }


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in ("seconds", "latency_ms", "when")}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


WAYS = {
    "sample": {"members__how": "sample", "ranking__objectives": ["avg"], "members__pool": 6},
    "joint": {"members__how": "joint", "ranking__objectives": ["avg"]},
    "taylor": {"members__how": "calibration", "ranking__method": "taylor", "ranking__rows": 8},
    "taylor-global": {"members__how": "calibration", "ranking__method": "taylor-global"},
    "drawn from taylor-global": {"members__how": "sample", "ranking__method": "taylor-global"},
    "trunk": {"members__trunk": 1, "members__keep": 6},
    "as pruned": {"finetuning": None, "backbone__finetune": None, "data__train": None, "decisions": NULL},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_members_leads_to_a_hydra(kitchen, way):
    recipe = read_recipe(kitchen.recipe(**WAYS[way]))
    done, told = told_by(recipe, "out", until="fusion")
    assert set(told.values()) == {"done"}
    hydra = Hydra.load(done.directory / "hydra")
    behind = [sum(head.layer >= recipe.members.trunk for head in heads) for heads in hydra.heads]
    assert behind == [recipe.members.keep] * 2
    assert hydra.trunk["vision"] >= recipe.members.trunk
    assert len({str(heads.to_json()) for heads in hydra.heads}) == 2 or way == "as pruned"


def test_names_of_classes_are_remembered_and_number_every_set_alike(kitchen):
    folders = {"train": CLASSES, "val": CLASSES, "cal": CLASSES, "test": CLASSES[2:]}  # of two classes only
    for number, (name, classes) in enumerate(folders.items()):
        write_folders(kitchen.place, name, classes, 20 + 10 * number)
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps({**config, "classes": None}))
    changes = {"data__train": "train", "data__id_val": "val", "data__id_cal": "cal", "data__id_test": "test"}
    recipe = read_recipe(kitchen.recipe(**changes, evaluation__models=["hydra"]))
    done, _ = told_by(recipe, "out")
    assert Hydra.load("out/hydra").classes == CLASSES
    splits = Splits(recipe.data, Path("hashes.json"))
    assert splits.rows("id_test").labels.unique().tolist() == [2, 3]
    assert done.results["models"]["hydra"]["rows"]["id_test"] == 12


def test_a_model_that_names_its_classes_numbers_those_of_the_data(kitchen):
    """In its own order, also those that the training set lacks."""
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps({**config, "classes": CLASSES[::-1]}))
    for number, (name, classes) in enumerate({"train": CLASSES[:3], "val": CLASSES[1:], "test": CLASSES}.items()):
        write_folders(kitchen.place, name, classes, 20 + 10 * number)
    changes = {"data__train": "train", "data__id_val": "val", "data__id_cal": None, "data__id_test": "test"}
    recipe = read_recipe(kitchen.recipe(**changes))
    splits = splits_of(recipe, Path("hashes.json"))
    assert splits.classes == CLASSES[::-1]
    model = load_model("model")
    assert splits.batches("train", model).labels.unique().tolist() == [1, 2, 3]
    assert splits.batches("id_val", model).labels.unique().tolist() == [0, 1, 2]
    done, _ = told_by(recipe, "out", until="ranking-acc")
    assert list(done.stages)[-1] == "ranking-acc"


def test_rows_that_choosing_sets_share_are_told(kitchen):
    recipe = read_recipe(kitchen.recipe(data__id_cal="val.npz[:12]", data__ood_val="val.npz[12:]"))
    with pytest.warns(HydraWarning) as told:
        check_fits(recipe, splits_of(recipe, Path("hashes.json")))
    assert [str(one.message) for one in told] == [
        "id_val shares 12 of its 12 rows with id_cal: it flatters what is fitted there"
    ]
    said = "ood_val shares 12 of its 12 rows with id_train: unknown inputs that are known"
    with pytest.warns(HydraWarning, match=said):
        check_fits(recipe, splits_of(read_recipe(kitchen.recipe(data__ood_val="train.npz[:12]")), Path("hashes.json")))


def test_members_that_taylor_scores_do_not_tell_apart_are_drawn(kitchen):
    """Two samples that are one give one ranking twice."""
    np.savez("train.npz", **{name: np.concatenate([part[:1]] * 24) for name, part in pictures(0, 24).items()})
    ways = {**WAYS["taylor-global"], "backbone__finetune": None, "ranking__rows": 8}
    done, _ = told_by(read_recipe(kitchen.recipe(**ways)), "out", until="members")
    found = json.loads((done.stages["members"] / "selection.json").read_text())
    assert found["drawn"] == [1]
    assert found["members"][0] != found["members"][1]
    with pytest.raises(HydraError, match=r"ranking\.method 'taylor-global'"):
        told_by(read_recipe(kitchen.recipe(**{**ways, "ranking__method": "taylor"})), "out", until="members")


def test_labels_that_alternate_are_in_both_halves(kitchen):
    """What is fitted first and what is fitted then is fitted on rows of all classes."""
    np.savez("cal.npz", **{**pictures(9, 40), "labels": np.arange(40) % 2})
    done, _ = told_by(read_recipe(kitchen.recipe(data__id_cal="cal.npz")), "out", until="decisions")
    assert Hydra.load(done.directory / "hydra").fitted.temperature is not None


def test_results_of_another_recipe_do_not_stay_beside_a_new_hydra(finished, kitchen):
    _, done, _ = finished
    shutil.copytree(done.directory, "out")
    same, _ = told_by(read_recipe(kitchen.recipe()), "out", until="fusion")
    assert json.loads((same.directory / "results.json").read_text()) == done.results
    told_by(read_recipe(kitchen.recipe(fusion={"mlp": "grouped"})), "out", until="fusion")
    assert not Path("out/results.json").exists()
    told_by(read_recipe(kitchen.recipe()), "out")
    assert json.loads(Path("out/results.json").read_text()) == done.results


def test_taylor_rankings_see_disjoint_samples(kitchen):
    done, _ = told_by(read_recipe(kitchen.recipe(**WAYS["taylor"])), "out", until="members")
    rankings = [json.loads((done.stages[f"ranking-{m}"] / "ranking.json").read_text()) for m in range(2)]
    assert rankings[0]["how"]["data"] != rankings[1]["how"]["data"]


# No stage that chooses anything can read a test split.

VARIANTS = [
    {},
    {"decisions": NULL},
    {"data__id_cal": None},
    {"finetuning": None},
    {"backbone__finetune": None},
    {"members__how": "joint", "ranking__objectives": ["avg"]},
    {"members__how": "sample", "ranking__objectives": ["avg"]},
    {"members__how": "calibration", "ranking__method": "taylor"},
    {"members__how": "calibration", "ranking__method": "taylor-global", "data__train": None,
     "finetuning": None, "backbone__finetune": None},
    {"evaluation__detectors": True, "evaluation__models": ["base"]},
]  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS)
def test_no_stage_that_chooses_declares_a_test_split(kitchen, changes):
    stages = stages_of(read_recipe(kitchen.recipe(**changes)))
    for stage in stages:
        if stage.chooses:
            assert set(stage.reads) <= set(CHOOSING)
    assert all(stage.name.startswith(("evaluation-", "costs", "results")) for stage in stages if not stage.chooses)
    # What depends on an evaluation comes after every choice.
    assert not any(name.startswith("evaluation-") for stage in stages if stage.chooses for name in stage.after)


def test_a_stage_that_chooses_cannot_be_made_to_read_a_test_split():
    for split in ("id_test", "near/yelp", "far/trec"):
        with pytest.raises(SplitError, match=f"cannot read the test split '{split}'"):
            Stage("greedy", lambda work: None, {}, ("id_val", split))


def test_a_stage_opens_only_what_it_declares(kitchen):
    splits = Splits(read_recipe(kitchen.recipe()).data, kitchen.place / "hashes.json").only("train", "id_val")
    assert len(splits.rows("id_val")) == 12
    for name in ("id_test", "near/close", "far/away", "ood_val"):
        for read in (splits.rows, splits.digest):
            with pytest.raises(SplitError, match="may not read"):
                read(name)


def test_while_a_stage_chooses_no_test_file_is_opened(kitchen):
    quick = {"members__number": 1, "ranking__objectives": ["acc"], "data__shifts": [], "evaluation__resamples": 0}
    recipe = read_recipe(kitchen.recipe(evaluation__models=["hydra"], **quick))
    current, opened, is_watching = "", [], True

    def watch(event, arguments):
        if is_watching and event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.append((current, Path(os.fspath(arguments[0])).name))

    def tell(name, what, _):
        nonlocal current
        current = name if what == "started" else ""

    sys.addaudithook(watch)
    try:
        run(recipe, kitchen.place / "out", tell=tell, progress=False)
    finally:
        is_watching = False
    tests = {"test.npz", "near.npz", "far.npz"}
    by_stage = {name: {file for stage, file in opened if stage == name} for name, _ in opened}
    assert tests <= by_stage["evaluation-hydra"]  # the watch does see them where they may be read
    assert "val.npz" in by_stage["ranking-acc"]
    for name in ("base", "ranking-acc", "members", "member-0", "fusion", "decisions"):
        assert not tests & by_stage.get(name, set()), name
    assert "config.json" in by_stage["costs"]
    assert not {f"{name}.npz" for name in SETS} & by_stage["costs"]


def test_other_test_sets_lead_to_the_same_hydra(finished, kitchen):
    _, undisturbed, _ = finished
    for seed, name in enumerate(("test", "near", "far")):
        np.savez(f"{name}.npz", **pictures(50 + seed, 16))
    recipe, out = read_recipe(kitchen.recipe()), kitchen.place / "out"
    other, _ = told_by(recipe, out, until="decisions")
    assert content(other.stages["decisions"]) == content(undisturbed.stages["decisions"])
    evaluated = next(one for one in planned(recipe, out) if one.stage.name == "evaluation-hydra")
    assert evaluated.kept.directory.name != undisturbed.stages["evaluation-hydra"].name


def test_images_in_linked_folders_and_behind_paths_in_parquet_are_noticed(kitchen):
    place = kitchen.place
    for name, pixels in zip("ab", pictures(5, 2)["images"], strict=True):
        (place / "far away" / name).mkdir(parents=True)
        Image.fromarray(pixels).save(place / "far away" / name / "0.png")
    (place / "linked").mkdir()
    for name in "ab":
        (place / "linked" / name).symlink_to(place / "far away" / name)
    structs = [{"bytes": None, "path": f"far away/{name}/0.png"} for name in "ab"]
    pq.write_table(pa.table({"image": structs}), place / "paths.parquet")
    recipe = read_recipe(kitchen.recipe(data__near={"linked": "linked", "paths": "paths.parquet"}))

    def digests():
        splits = Splits(recipe.data, place / "hashes.json")
        return [splits.digest(f"near/{name}") for name in ("linked", "paths")]

    before = digests()
    assert digests() == before
    Image.fromarray(pictures(6, 1)["images"][0]).save(place / "far away" / "a" / "0.png")
    assert not set(digests()) & set(before)


def test_names_beside_the_numbers_are_part_of_a_set(kitchen):
    recipe = read_recipe(kitchen.recipe(data__id_test="named.parquet"))
    found = []
    for names in (["cat", "dog"], ["dog", "cat"]):
        images = [png(pixels) for pixels in pictures(5, 2)["images"]]
        table = pa.table({"image": images, "label": [0, 1], "class": names})
        pq.write_table(table, kitchen.place / "named.parquet")
        found.append(Splits(recipe.data, kitchen.place / "hashes.json").digest("id_test"))
    assert found[0] != found[1]


def test_another_architecture_behind_a_variable_is_another_plan(kitchen, monkeypatch):
    keys = []
    for name in ("vit_tiny_patch16_224", "deit3_small_patch16_224"):
        monkeypatch.setenv("ARCHITECTURE", name)
        recipe = read_recipe(kitchen.recipe(backbone__model="timm:${ARCHITECTURE}"))
        keys.append([one.key for one in planned(recipe, "${ARCHITECTURE}/out")])
        assert (kitchen.place / name / "out" / "hashes.json").exists()
    assert not set(keys[0]) & set(keys[1])


def test_a_set_that_heads_were_chosen_with_is_known_behind_a_variable(kitchen, monkeypatch):
    monkeypatch.setenv("CHOSEN", str(kitchen.place / "oodval.npz"))
    done = run(read_recipe(kitchen.recipe(data__ood_val="${CHOSEN}")), "out", until="fusion")
    hydra = Hydra.load(done.stages["fusion"] / "hydra")
    assert hydra.provenance["chosen_with"] == [{"source": f"{kitchen.place.name}/oodval.npz"}]


def test_sets_that_are_not_simply_files_are_read_once_a_plan(kitchen, monkeypatch):
    pq.write_table(pa.table({"image": [png(p) for p in pictures(3, 8)["images"]], "label": [i % 4 for i in range(8)]}),
                   "val-0.parquet")  # fmt: skip
    digests, digest = [], Rows.digest.func
    monkeypatch.setattr(Rows, "digest", property(lambda rows: digests.append(rows.where) or digest(rows)))
    planned(read_recipe(kitchen.recipe(data__id_val="val-*.parquet")), "out")
    assert len([where for where in digests if "val-" in where]) == 1


def test_results_follow_what_the_recipe_says_of_itself(finished, kitchen):
    place, _, _ = finished
    shutil.copytree(place / "out" / "stages", kitchen.place / "out" / "stages")
    done, told = told_by(read_recipe(kitchen.recipe(name="renamed")), "out")
    assert done.results["recipe"]["name"] == "renamed"
    assert [name for name, what in told.items() if what == "done"] == ["results"]


def test_heads_that_were_chosen_without_unknown_inputs_say_so(kitchen):
    for objectives, expected in ((["acc"], None), (["avg"], "oodval.npz"), (["ood"], "oodval.npz")):
        recipe = read_recipe(kitchen.recipe(ranking__objectives=objectives, members__how="sample", members__pool=4))
        assert (unknown_source(recipe) or "").rpartition("/")[2] == (expected or "")
    taylor = read_recipe(kitchen.recipe(ranking__method="taylor-global", members__how="calibration"))
    assert unknown_source(taylor) is None
