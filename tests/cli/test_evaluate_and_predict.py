"""`hydra-ens evaluate` and `predict`: a stored hydra, files of images or texts, and tables of what it makes of them."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from deciding import NAMES, TEXT, hydra_of
from families import edit_config, model_of
from hydra_ensembles import HeadSet, Hydra, prune
from hydra_ensembles.cli import predict as command
from hydra_ensembles.data import batches_for, load_data, open_data
from hydra_ensembles.evaluation import Evaluation, Protocol, evaluate
from tiny_sets import IMAGE, png

NUMBERS = ("confidence", "entropy", "aleatoric", "epistemic", "disagreement", "ood_score")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A stored hydra, a folder of known images, one of unknown ones without classes, and an npz of others."""
    root = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(0)
    for row in range(30):
        file = root / "known" / NAMES[row % 5] / f"{row:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(chance.integers(0, 256, (20, 20, 3), dtype=np.uint8)))
    (root / "unknown").mkdir()
    for row in range(12):
        pixels = np.full((20, 20, 3), chance.integers(0, 256), dtype=np.uint8)
        pixels[row] = chance.integers(0, 256, (20, 3))
        (root / "unknown" / f"photo-{row:02}.png").write_bytes(png(pixels))
    np.savez(root / "other.npz", images=chance.integers(0, 100, (10, 24, 24, 3), dtype=np.uint8), labels=range(70, 80))
    hydra = hydra_of("timm", IMAGE, root / "known")
    hydra.save(root / "hydra")
    return SimpleNamespace(
        root=root,
        hydra=str(root / "hydra"),
        known=str(root / "known"),
        unknown=str(root / "unknown"),
        other=str(root / "other.npz"),
    )


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A stored hydra, and texts of very different length in csv files."""
    root = tmp_path_factory.mktemp("texts")
    for seed, name in enumerate(("known", "yelp", "val")):
        chance = np.random.default_rng(seed)
        texts = [" ".join(chance.choice(list("abcdefgh"), chance.integers(1, 16))) for _ in range(25)]
        with (root / f"{name}.csv").open("w", newline="") as file:
            lines = [(f"{text} {name} {row}", NAMES[row % 5]) for row, text in enumerate(texts)]
            csv.writer(file).writerows([("sentence", "label"), *lines])
    hydra_of("bert", TEXT, root / "val.csv").save(root / "hydra")
    return SimpleNamespace(
        root=root, hydra=str(root / "hydra"), **{n: str(root / f"{n}.csv") for n in ("known", "yelp", "val")}
    )


def asked(pictures, *more):
    sets = ["--near", f"plain={pictures.unknown}", "--far", f"noise={pictures.other}"]
    return ["evaluate", pictures.hydra, "--id-test", pictures.known, *sets, "--resamples", "50", *more]


# evaluate


def test_a_stored_hydra_is_evaluated_as_in_python(pictures, run, tmp_path):
    hydra = Hydra.load(pictures.hydra)
    protocol = Protocol(
        load_data(pictures.known, hydra),
        {"plain": load_data(pictures.unknown, hydra, labels=False)},
        {"noise": load_data(pictures.other, hydra, labels=False)},
    )
    expected = evaluate(hydra, protocol, resamples=50)
    done = run(*asked(pictures, "--json", "--out", str(tmp_path / "found"), "--keep", str(tmp_path / "kept")))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["figures"] == expected.figures
    assert told["compared"] is None
    assert told["rows"] == {"id_test": 30, "plain": 12, "noise": 10}
    assert set(told["about"]["decisions"]) == {"id_test", "plain", "noise"}
    written = Evaluation.load(tmp_path / "found")
    assert written.intervals == expected.intervals
    assert written.judged["id_test"].label.tolist() == open_data(pictures.known).labels.tolist()
    assert written.judged["plain"].answer.tolist() == expected.judged["plain"].answer.tolist()
    assert (tmp_path / "kept" / "plain" / "config.json").exists()


def test_a_person_sees_tables(pictures, run, tmp_path):
    out = tmp_path / "found"
    done = run(*asked(pictures, "--out", str(out), "--score", "energy"))
    assert done.returncode == 0, done.stderr
    for words in (
        "30 known rows; OOD by energy",
        "accuracy %",
        "AUROC plain %",
        "AUROC average %",
        "decisions, % of rows",
    ):
        assert words in done.stdout
    assert f"wrote {out}" in done.stdout
    again = run(*asked(pictures, "--against", str(out), "--score", "energy"))
    assert again.returncode == 0, again.stderr
    assert "on the same rows" in again.stdout
    assert "+0.000 to +0.000" in again.stdout


def test_a_difference_is_told_in_json(pictures, run, tmp_path):
    assert run(*asked(pictures, "--out", str(tmp_path / "found"))).returncode == 0
    done = run(*asked(pictures, "--against", str(tmp_path / "found"), "--json"))
    compared = json.loads(done.stdout)["compared"]
    assert compared["answers"]["id_test"]["accuracy"] == {"value": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}
    assert "noise" in compared["ood/msp"]


def test_a_difference_from_an_evaluation_of_another_seed_is_drawn_as_that_was(pictures, run, tmp_path):
    hydra = Hydra.load(pictures.hydra)
    unknown = (open_data(place, label=False) for place in (pictures.unknown, pictures.other))
    near, far = (batches_for(hydra, rows, labels=False) for rows in unknown)
    protocol = Protocol(load_data(pictures.known, hydra), near={"plain": near}, far={"noise": far})
    evaluate(hydra, protocol, seed=3, resamples=50).save(tmp_path / "found")
    done = run(*asked(pictures, "--against", str(tmp_path / "found"), "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["compared"]["answers"]["id_test"]["accuracy"]["value"] == 0.0


def test_what_cannot_be_compared_is_not_evaluated_first(pictures, run, tmp_path, monkeypatch):
    assert run(*asked(pictures, "--out", str(tmp_path / "found"))).returncode == 0
    monkeypatch.setattr("hydra_ensembles.evaluation.evaluate", lambda *a, **b: pytest.fail("it was evaluated"))
    against = ["--against", str(tmp_path / "found")]
    done = run(*asked(pictures, "--score", "energy", *against))
    assert (done.returncode, "have score energy and msp" in done.stderr) == (1, True)
    fewer = [f"{pictures.known}[:20]" if one == pictures.known else one for one in asked(pictures, *against)]
    done = run(*fewer)
    assert (done.returncode, "different rows in 'id_test'" in done.stderr) == (1, True)


def test_texts_under_shift_with_columns_that_are_named(reviews, run, tmp_path):
    strange = tmp_path / "strange.csv"
    with strange.open("w", newline="") as file:
        lines = [(NAMES[row.label], row.input, "x") for row in open_data(reviews.known, classes=NAMES)]
        csv.writer(file).writerows([("gold", "body", "note"), *lines])

    def evaluated(test, val, *more):
        shifts = ["--shift", "word_swap/3", "--shift", "character_delete/5"]
        return run("evaluate", reviews.hydra, "--id-test", test, "--id-val", val, *shifts, "--resamples", "0", *more)

    named = ["--text", "body", "--label", "gold"]
    both = [
        evaluated(reviews.known, reviews.val, "--json"),
        evaluated(str(strange), str(strange), "--json", *named, "--allow-seen"),
    ]
    one, other = (json.loads(done.stdout) for done in both)
    assert one["figures"] == other["figures"]
    assert set(one["figures"]["answers"]) == {"id_test", "word_swap-3", "character_delete-5", "shifts"}
    assert one["about"]["seen"] == []
    assert "'id_test' shares 25 of its 25 rows with id_val" in other["about"]["seen"][0]


def test_what_was_seen_before_is_refused_or_told(pictures, run):
    done = run(*asked(pictures, "--ood-val", f"{pictures.unknown}[:3]"))
    assert done.returncode == 1
    assert "test set 'plain' shares 3 of its 12 rows with ood_val" in done.stderr
    done = run(*asked(pictures, "--ood-val", f"{pictures.unknown}[:3]", "--allow-seen"))
    assert done.returncode == 0, done.stderr
    assert "mind: test set 'plain' shares 3 of its 12 rows with ood_val" in done.stdout


def test_unknown_sets_may_have_any_labels(reviews, run, tmp_path):
    scored = tmp_path / "scored.csv"  # a column of labels that are none, beside texts under a name of their own
    scored.write_text("body,label\none two,3.8\nthree four,\nplain words,x\n")
    done = run("evaluate", reviews.hydra, "--id-test", reviews.known, "--near", f"scored={scored}", "--resamples", "0",
               "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["scored"] == 3


def test_detectors_of_one_model(pictures, run, tmp_path):
    model = prune(model_of("timm"), HeadSet.all(model_of("timm")))
    with torch.no_grad():
        model.model.head.bias.add_(10)
    model.save(tmp_path / "member")
    edit_config(lambda config: config.update(preprocess=IMAGE, classes=NAMES))(tmp_path / "member")
    known = [f"{pictures.known}[:15]", f"{pictures.known}[15:]"]
    done = run("evaluate", str(tmp_path / "member"), "--id-test", known[0], "--id-val", known[1], "--detectors",
               "--far", f"noise={pictures.other}", "--score", "knn", "--resamples", "20", "--json")  # fmt: skip
    assert done.returncode == 1
    assert "principal space of 16 dimensions" in done.stderr, "15 rows are too few"
    known = [f"{pictures.known}[:10]", f"{pictures.known}[10:]"]
    done = run("evaluate", str(tmp_path / "member"), "--id-test", known[0], "--id-val", known[1], "--detectors",
               "--far", f"noise={pictures.other}", "--score", "knn", "--resamples", "20", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"ood/knn", "ood/mahalanobis", "ood/vim"} <= set(json.loads(done.stdout)["figures"])


# predict


def read_table(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return list(csv.DictReader(path.open(newline="")))


def check_against(table, hydra, rows, names=None):
    """The table is what `hydra.predict` says of one row after the other."""
    assert [int(line["row"]) for line in table] == list(range(len(rows)))
    for place, line in enumerate(table):
        (batch,) = batches_for(hydra, rows[place : place + 1], labels=False)
        with torch.no_grad():
            said = hydra.predict(batch.inputs)
        assert int(line["label"]) == said.label.item()
        assert line["class"] == NAMES[said.label.item()]
        for name in NUMBERS:
            assert float(line[name]) == pytest.approx(getattr(said, name).item(), rel=1e-3, abs=1e-5)
        assert line["decision"] == said.decision[0]
        assert [int(one) for one in str(line["prediction_set"]).split()] == said.prediction_set[0].nonzero()[
            :, 0
        ].tolist()
        assert names is None or line["input"] == names[place]


@pytest.mark.parametrize("at_once", [4096, 10])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_of_images_has_their_names_and_what_the_hydra_says(
    ending, at_once, pictures, run, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "_AT_ONCE", at_once)
    out = tmp_path / "deep" / f"table.{ending}"
    done = run("predict", pictures.hydra, pictures.known, "--out", str(out), "--batch-size", "7")
    assert done.returncode == 0, done.stderr
    names = sorted(f"{NAMES[row % 5]}/{row:02}.png" for row in range(30))
    table = read_table(out)
    check_against(table, Hydra.load(pictures.hydra), open_data(pictures.known), names)
    assert f"wrote {out}  (30 rows; " in done.stdout
    decisions = [line["decision"] for line in table]
    for kind in set(decisions):
        assert f"{kind} {100 * decisions.count(kind) / 30:.1f} %" in done.stdout
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_texts_come_out_in_the_order_of_their_file(reviews, run):
    done = run("predict", reviews.hydra, reviews.known, "--json", "--batch-size", "4")
    assert done.returncode == 0, done.stderr
    table = [json.loads(line) for line in done.stdout.splitlines()]
    check_against(table, Hydra.load(reviews.hydra), open_data(reviews.known))
    assert "input" not in table[0]


def test_inputs_without_labels_and_without_a_file_to_write(pictures, run):
    done = run("predict", pictures.hydra, pictures.unknown)
    assert done.returncode == 0, done.stderr
    assert "(12 rows; " in done.stdout
    done = run("predict", pictures.hydra, pictures.known)
    assert "20 of 30 rows; --out writes all" in done.stdout


def test_a_plain_model_predicts_without_decisions(run, tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 8, 8, 3), dtype=np.uint8))
    done = run("predict", "timm:test_vit", str(tmp_path / "x.npz"), "--json")
    assert done.returncode == 0, done.stderr
    table = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(table) == 3
    assert "decision" not in table[0]
    assert table[0]["epistemic"] == 0
    assert "random weights" in done.stderr


def test_a_table_that_cannot_be_finished_is_not_there(pictures, run, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_AT_ONCE", 4)
    folder = tmp_path / "photos"
    folder.mkdir()
    good = (pictures.root / "unknown" / "photo-00.png").read_bytes()
    for row in range(9):
        (folder / f"{row}.png").write_bytes(good if row < 8 else good[:50])
    out = tmp_path / "table.csv"
    out.write_text("what was there before\n")
    done = run("predict", pictures.hydra, str(folder), "--out", str(out))
    assert done.returncode == 1
    assert "row 8 of" in done.stderr
    assert out.read_text() == "what was there before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "table.csv"]


# What is wrong


def one_line(done, message, code=1):
    assert done.returncode == code, done.stderr
    assert message in done.stderr, done.stderr
    assert len(done.errors) == 1
    assert "Traceback" not in done.stdout + done.stderr


def damaged_image(at):
    (at / "damaged").mkdir()
    (at / "damaged" / "0.png").write_bytes(b"no image at all")


def mixed_folder(at):
    (at / "mixed" / "inside").mkdir(parents=True)
    (at / "mixed" / "0.png").write_bytes(b"x")


FILES = {
    "empty.csv": "",
    "header.csv": "sentence,label\n",
    "strange.csv": "sentence,label\na b,ant\nc d,zebra\n",
    "high.csv": "sentence,label\na b,0\nc d,7\n",
    "bare.csv": "sentence\na b\nc d\n",
    "gap.csv": "sentence,label\na b,ant\nc d,\n",
    "odd.csv": "one,two,label\na,b,0\n",
    "ragged.csv": "sentence,label\na,b,ant\n",
    "notes.pkl": "a b\n",
    "torn.jsonl": '{"sentence": "a", "label": 0}\n{"sentence": \n',
}
EVALUATE = ["evaluate", "{hydra}", "--resamples", "20", "--id-test"]
GOOD = [*EVALUATE, "{known}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*EVALUATE, "nowhere.csv"], "nowhere.csv does not exist"),
        ([*EVALUATE, "{at}/empty.csv"], "empty.csv is empty"),
        ([*EVALUATE, "{at}/header.csv"], "header.csv has no rows"),
        ([*EVALUATE, "{at}/strange.csv"], "has class 'zebra', which the model does not know"),
        ([*EVALUATE, "{at}/high.csv"], "has label 7, but the model has 5 classes"),
        ([*EVALUATE, "{at}/bare.csv"], "set 'id_test' has no labels"),
        ([*EVALUATE, "{at}/gap.csv"], "row 1 of {at}/gap.csv has no 'label'"),
        ([*EVALUATE, "{at}/odd.csv"], "which column is the input?"),
        ([*EVALUATE, "{at}/ragged.csv"], "row 0 of {at}/ragged.csv has 3 fields, expected 2"),
        ([*EVALUATE, "{at}/notes.pkl"], "ends in '.pkl'"),
        ([*EVALUATE, "{at}/torn.jsonl"], "row 1 of {at}/torn.jsonl is not JSON"),
        ([*EVALUATE, "{at}/damaged"], "the model takes texts, but"),
        ([*EVALUATE, "{known}[99:]"], "no row of {known} is left"),
        ([*GOOD, "--label", "gold"], "known.csv has no column 'gold'"),
        ([*GOOD, "--text", "body"], "known.csv has no column 'body'"),
        ([*GOOD, "--near", "yelp"], "--near takes NAME=DATA, as in --near yelp=yelp.parquet; found 'yelp'"),
        ([*GOOD, "--far", "={yelp}"], "--far takes NAME=DATA"),
        ([*GOOD, "--near", "a={yelp}", "--near", "a={val}"], "--near names 'a' twice"),
        ([*GOOD, "--near", "a={yelp}", "--far", "a={val}"], "two test sets are called 'a'"),
        ([*GOOD, "--near", "a={yelp}", "--far", "b={yelp}"], "test sets 'a' and 'b' hold the same rows"),
        ([*GOOD, "--near", "a/b={yelp}"], "'a/b' cannot name a test set"),
        ([*GOOD, "--near", "average={yelp}"], "'average' cannot name a test set"),
        ([*GOOD, "--near", "a={at}/empty.csv"], "empty.csv is empty"),
        ([*GOOD, "--near", "a={at}/header.csv"], "header.csv has no rows"),
        ([*GOOD, "--near", "a=nowhere.csv"], "nowhere.csv does not exist"),
        ([*GOOD, "--id-val", "{known}[:5]"], "shares 5 of its 25 rows with id_val"),
        ([*GOOD, "--near", "a={yelp}[5:]", "--ood-val", "{yelp}[:5]"], "comes from the same file as ood_val"),
        ([*GOOD, "--score", "luck"], "score 'luck' is not known here; known are msp"),
        ([*GOOD, "--score", "knn"], "score 'knn' is not known here"),
        ([*GOOD, "--shift", "word_swap/9"], "severity 9 of word_swap is not known"),
        ([*GOOD, "--shift", "word_swap"], "has no severity"),
        ([*GOOD, "--shift", "fog/3"], "corruption 'fog' is not known for texts"),
        ([*GOOD, "--detectors"], "are for one network"),
        ([*GOOD, "--first-size", "32"], "first_size are for images"),
        ([*GOOD, "--against", "nowhere"], "nowhere is not a directory"),
        ([*GOOD, "--against", "{hydra}"], "is a store of kind 'hydra', expected 'evaluation'"),
        ([*GOOD, "--out", "{at}"], "which is not part of a store of ours"),
        (["evaluate", "nowhere", "--id-test", "{known}"], "'nowhere' is neither a directory nor a reference"),
        (["evaluate", "{nan}", "--id-test", "{known}"], "set 'id_test': member 0 answers row 0 with NaN"),
        (["evaluate", "{torn}", "--id-test", "{known}"], "is truncated or not a safetensors file"),
        (["evaluate", "timm:test_vit", "--id-test", "{known}"], "the model takes images, but"),
        (["predict", "{hydra}", "nowhere.csv"], "nowhere.csv does not exist"),
        (["predict", "{hydra}", "{at}/empty.csv"], "empty.csv is empty"),
        (["predict", "{hydra}", "{at}/odd.csv"], "which column is the input?"),
        (["predict", "{hydra}", "{known}", "--out", "{at}/x.xlsx"], "a table ends in .csv, .jsonl, .parquet"),
        (["predict", "{hydra}", "{known}", "--out", "{at}/header.csv/x.csv"], "cannot be written"),
        (["predict", "{hydra}", "{known}", "--out", "{at}/folder.csv"], "is a directory; name a file"),
        (["predict", "{hydra}", "{known}", "--out", "{known}"], "is the input itself"),
        (["predict", "{hydra}", "{known}[1:]", "--out", "{known}"], "is the input itself"),
        (["predict", "{nan}", "{known}"], "member 0 answers row 0 with NaN"),
        (["predict", "{hydra}", "{at}/damaged"], "the model takes texts, but"),
        (["predict", "{hydra}", "{known}", "--max-tokens", "99"], "the model takes at most 20 tokens"),
    ],
)
def test_what_is_wrong_with_texts_ends_in_one_line(arguments, message, reviews, run, tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    damaged_image(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    places = {"at": str(tmp_path), **vars(reviews)}
    if "{nan}" in arguments or "{torn}" in arguments:
        hydra = Hydra.load(reviews.hydra)
        with torch.no_grad():
            next(iter(hydra.parameters())).fill_(torch.nan)
        places["nan"] = places["torn"] = str(hydra.save(tmp_path / "nan"))
        if "{torn}" in arguments:
            (tmp_path / "nan" / "model.safetensors").write_bytes(b"short")
    one_line(run(*[argument.format(**places) for argument in arguments]), message.format(**places))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "{hydra}", "--id-test", "{at}/damaged"], "set 'id_test' has no labels"),
        (
            ["evaluate", "{hydra}", "--id-test", "{known}", "--far", "a={at}/damaged"],
            "not a readable image",
        ),
        (["evaluate", "{hydra}", "--id-test", "{known}", "--far", "a={at}/mixed"], "expected one folder a class"),
        (["evaluate", "{hydra}", "--id-test", "{known}", "--far", "a={at}/nothing"], "holds neither images"),
        (["evaluate", "{hydra}", "--id-test", "{known}", "--shift", "fog/0"], "severity 0 of fog is not known"),
        (["evaluate", "{hydra}", "--id-test", "{other}"], "has label 70, but the model has 5 classes"),
        (["predict", "{hydra}", "{at}/damaged"], "not a readable image"),
        (["predict", "{hydra}", "{at}/nothing"], "holds neither images"),
        (["predict", "{hydra}", "{known}", "--max-tokens", "9"], "max_tokens is for texts"),
    ],
)
def test_what_is_wrong_with_images_ends_in_one_line(arguments, message, pictures, run, tmp_path):
    damaged_image(tmp_path)
    mixed_folder(tmp_path)
    (tmp_path / "nothing").mkdir()
    places = {"at": str(tmp_path), **vars(pictures)}
    one_line(run(*[argument.format(**places) for argument in arguments]), message.format(**places))


def test_a_test_set_of_one_class_is_no_error(pictures, run):
    done = run("evaluate", pictures.hydra, "--id-test", f"{pictures.known}[:6]", "--resamples", "20", "--json")
    assert done.returncode == 0, done.stderr
    assert 0 <= json.loads(done.stdout)["figures"]["answers"]["id_test"]["accuracy"] <= 1


def test_usage_errors_are_typer_s(pictures, run):
    assert run("evaluate", pictures.hydra).returncode == 2
    assert run("evaluate", pictures.hydra, "--id-test", pictures.known, "--resamples", "-1").returncode == 2
    assert run("predict", pictures.hydra).returncode == 2


def test_what_is_wrong_with_the_input_is_not_said_of_the_output(pictures, run, tmp_path, monkeypatch):
    def unread(*_, **__):
        raise OSError("the disk of the input is gone")

    monkeypatch.setattr("hydra_ensembles.evaluation.answers", unread)
    done = run("predict", pictures.hydra, pictures.known, "--out", str(tmp_path / "p.csv"))
    assert done.returncode == 1
    assert "the disk of the input is gone" in done.stderr
    assert "--out" not in done.stderr
    assert not list(tmp_path.iterdir())
