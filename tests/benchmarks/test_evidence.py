"""The evidence benchmarks at toy size: every row is made, judged and summarised, and a killed run goes on."""

import copy
import json
import re
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from evidence import agreement, extras, judging, page, summary, timing, verdicts, workers
from evidence import claims as claimed
from evidence import networks as made_networks
from evidence.asking import ask_hydra
from evidence.choosing import choice, chosen_rows
from evidence.comparing import compared
from evidence.methods import REBUILT, SEEDS_OF, file_name, heads_of, row
from evidence.networks import Networks
from evidence.setting import Setting
from evidence.units import Units
from evidence.workers import hours
from families import BY_NAME, CLASSES, model_of
from hydra_ensembles import HeadSet
from hydra_ensembles.data.batches import TensorBatches
from hydra_ensembles.evaluation.answers import answers, load_answers
from hydra_ensembles.members import Recipe

RECIPE = Recipe("toy", learning_rate=1e-3, epochs=1, dropout=0.1)
GROUPS = {"near": ("almost",), "far": ("noise", "other"), "apart": ("apart",)}


def rows(seed, number=24, labels=True, shift=0):
    inputs = BY_NAME["bert"].inputs(number, 7, seed)
    inputs = {**inputs, "input_ids": (inputs["input_ids"] + shift) % 40}
    answer = (inputs["input_ids"][:, 1] % CLASSES) if labels else None
    return inputs, answer


def batches(seed, shuffle=False, order=0, **more):
    return TensorBatches(*rows(seed, **more), batch_size=8, shuffle=shuffle, seed=order)


def toy(place):
    def load(seed):
        model = copy.deepcopy(model_of("bert"))
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.classifier.weight)
        return model

    unknown = {
        name: batches(10 + i, labels=False, shift=5) for i, name in enumerate(("almost", "noise", "other", "apart"))
    }
    return Setting(
        name="toy",
        kept=place / "kept",
        load=load,
        train=lambda model, seed: batches(0, shuffle=True, order=seed),
        tune=lambda model, seed: batches(1, shuffle=True, order=seed),
        calibration=lambda model, sample: batches(20 + sample),
        known_val=lambda model: batches(2),
        unknown_val=lambda model: batches(3, labels=False, shift=3),
        known_search=lambda model: batches(2),
        unknown_search=lambda model: batches(3, labels=False, shift=3),
        tests=lambda model: {"first": batches(4), "second": batches(5), **unknown},
        known_tests={"first": ("first",), "both": ("first", "second")},
        groups=GROUPS,
        base=RECIPE,
        post=replace(RECIPE, freeze_stem=True),
        rates=(1e-3, 3e-3),
        layers=3,
        heads=4,
        keep=6,
        pool=8,
        swept=(9, 6),
        trunks={1: 4},
        tokens=7,
    )


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    place = tmp_path_factory.mktemp("evidence")
    with pytest.MonkeyPatch.context() as patch:
        for module in (made_networks, summary, page):
            patch.setattr(module, "RESULTS", place / "results")
        setting = toy(place)
        made = Networks(setting, Units(setting.kept))
        wanted = [judging.results_unit(made, row(made, method, 0)) for method in SEEDS_OF]
        claims = [
            *claimed.without_training(made),
            *claimed.not_fused(made),
            *claimed.sources(made),
            *claimed.member_counts(made),
            claimed.trunk(made, 0, 1),
            *claimed.trunks_without_training(made),
            claimed.grouped(made, 0),
            claimed.trained_otherwise(made, 0, "smoothing 0.1", "smooth", label_smoothing=0.1),
            claimed.control_otherwise(made, 0, "DE(D)+", "smoothing 0.1", "plus-smooth", label_smoothing=0.1),
            claimed.from_pretrained(made, 0, "grouped"),
            claimed.trained_otherwise(made, 0, "rough", "rough", "random heads", keep=8, label_smoothing=0.0),
            claimed.own_bases(made, 0, 8, "average", "random heads"),
            row(made, "hydra (circuit), 8 heads", 0),
            claimed.own_bases(made, 0, 6, "average"),
            claimed.own_bases(made, 0, 8, "grouped"),
        ]
        claims += list(claimed.swept(made))
        wanted += [judging.results_unit(made, one, "claims") for one in claims]
        made.units.run(wanted)
        yield made


def images(seed, number=24, labels=True, shift=0.0):
    inputs = BY_NAME["timm"].inputs(number, 0, seed) + shift
    answer = (inputs.mean(dim=(1, 2, 3)) > 0).long() if labels else None
    return TensorBatches(inputs, answer, batch_size=8)


@pytest.fixture(scope="module")
def image_networks(tmp_path_factory):
    place = tmp_path_factory.mktemp("images")

    def load(seed):
        model = copy.deepcopy(model_of("timm"))
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.head.weight)
        return model

    shifts = {f"noise/{s}": images(30 + s) for s in (1, 2)} | {f"blur/{s}": images(40 + s) for s in (1, 2)}
    setting = replace(
        toy(place),
        name="images",
        load=load,
        train=lambda model, seed: images(0),
        tune=lambda model, seed: images(1),
        calibration=lambda model, sample: images(20 + sample),
        known_val=lambda model: images(2),
        unknown_val=lambda model: images(3, labels=False, shift=1),
        known_search=lambda model: images(2),
        unknown_search=lambda model: images(3, labels=False, shift=1),
        tests=lambda model: {"first": images(4), "almost": images(5, labels=False), "noise": images(6, labels=False)},
        known_tests={"first": ("first",)},
        groups={"near": ("almost",), "far": ("noise",), "apart": ()},
        tokens=None,
        taylor_scope="global",
        removed=7,
        post_rates=(1e-2,),
        more_methods=tuple(REBUILT),
        sparsity=0.2,
        dropout=0.1,
        shifts=lambda model: shifts,
        averages={"auroc_without_noise": ("almost",)},
        asked_in="bf16",
        base=replace(RECIPE, precision="bf16"),
        rates_of={"mimo": (2e-3,)},
        searched=4,
        samples=4,
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (made_networks, summary):
            patch.setattr(module, "RESULTS", place / "results")
        made = Networks(setting, Units(setting.kept))
        methods = (
            "single",
            "MC Dropout",
            "LoRA",
            "hydra (Taylor)",
            "hydra (Taylor), 6 heads",
            "hydra (circuit), 5 heads",
        )
        rows = [row(made, method, 0) for method in (*methods, *REBUILT, "unstructured")]
        wanted = [judging.results_unit(made, one) for one in rows] + [judging.shifted_unit(made, one) for one in rows]
        made.units.run(wanted)
        yield made


def test_baselines_with_networks_of_their_own_are_trained_kept_and_judged(image_networks):
    groups = image_networks.setting.groups
    found = summary.summary_of(
        summary.results_of("images"), "first", groups, {}, averages=image_networks.setting.averages
    )["methods"]
    assert set(REBUILT) < set(found)
    assert found["MIMO"]["mult_adds"]["mean"] < found["BatchEnsemble"]["mult_adds"]["mean"]
    assert found["unstructured"]["params"]["mean"] < found["single"]["params"]["mean"]
    for metrics in found.values():
        assert metrics["auroc_without_noise"] == metrics["auroc/almost"]
    setting, units = image_networks.setting, image_networks.units
    built = image_networks.load_method(
        "networks/batchensemble-0", lambda: REBUILT["BatchEnsemble"](setting.load(0), setting.members)
    )
    kept = load_file(units.directory("networks/batchensemble-0") / "member" / "weights.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in built.state_dict().items())
    # And it is the trained network that was asked, there in bf16.
    (name, batches), *_ = setting.tests(setting.load(0)).items()
    said = load_answers(units.directory("answers/batchensemble-0"))[name]
    assert torch.allclose(answers(built, batches, progress=False).logits, said.logits, atol=0.2, rtol=0)
    fresh = REBUILT["BatchEnsemble"](setting.load(0), setting.members).eval()
    assert not torch.allclose(answers(fresh, batches, progress=False).logits, said.logits, atol=0.2, rtol=0)


def test_corrupted_inputs_are_judged_by_severity(image_networks):
    path = image_networks.units.root.parent / "results" / "images" / "shift" / "mimo-0.json"
    found = json.loads(path.read_text())
    assert set(found["severities"]) == {"1", "2"}
    pair = [found["sets"][f"{name}-1"]["accuracy"] for name in ("noise", "blur")]
    assert found["severities"]["1"]["accuracy"] == pytest.approx(sum(pair) / 2)


def test_differences_of_other_averages_are_those_of_their_sets(image_networks):
    image_networks.units.run(["draws/lora-0", "draws/single-0"])
    found = compared(image_networks, [("LoRA", "single")], [0])["LoRA minus single"]
    assert found["auroc_without_noise"] == found["auroc_near"]


def test_every_row_has_every_figure(networks):
    found = summary.results_of("toy")
    assert {method for method, _ in found} == set(SEEDS_OF)
    methods = summary.summary_of(found, "first", GROUPS, {"single": 1.0})["methods"]
    for name, metrics in methods.items():
        for metric in (
            *("accuracy", "brier", "nll", "ece", "aece", "auroc", "auroc_near", "auroc_far", "fpr95", "aupr"),
            *("mutual_information", "disagreement", "mutual_information_ood"),
        ):
            assert metrics[metric]["seeds"] == 1, (name, metric)
        assert {"mutual_information", "disagreement", "params", "mult_adds", "auroc/noise", "auroc/apart"} <= set(
            metrics
        )
    assert methods["single"]["mutual_information"]["mean"] == pytest.approx(0, abs=1e-12)
    assert methods["DE(D)"]["mutual_information"]["mean"] > 0


def test_a_row_names_the_heads_that_it_keeps_and_is_timed_with_them(networks):
    chosen = networks.head_sets(heads_of(networks, "circuit", 0))
    found = summary.results_of("toy")
    assert [HeadSet.from_json(one) for one in found["hydra (circuit)", 0]["kept"]] == chosen
    assert timing._kept_heads(networks, "hydra (circuit)") == chosen
    assert timing._kept_heads(networks, "CircAvg") == chosen[:1]
    assert found["DE(D)", 0]["kept"] == found["single", 0]["kept"] == []


def test_an_average_is_that_of_its_sets_and_the_second_column_has_more_rows(networks):
    found = summary.results_of("toy")
    methods = summary.summary_of(found, "first", GROUPS, {})["methods"]
    for metrics in methods.values():
        sets = [metrics[f"auroc/{name}"]["mean"] for name in ("almost", "noise", "other")]
        assert metrics["auroc"]["mean"] == pytest.approx(sum(sets) / 3)
    both = summary.summary_of(found, "both", GROUPS, {})["methods"]
    assert any(both[name]["accuracy"] != methods[name]["accuracy"] for name in methods)


def test_costs_are_those_of_the_methods(networks):
    methods = summary.summary_of(summary.results_of("toy"), "first", GROUPS, {})["methods"]
    params = {name: metrics["params"]["mean"] for name, metrics in methods.items()}
    arithmetic = {name: metrics["mult_adds"]["mean"] for name, metrics in methods.items()}
    assert params["DE(D)"] == 3 * params["single"] == params["DE(D)+"]
    assert arithmetic["MC Dropout"] == 10 * arithmetic["single"]
    assert params["single"] < params["DE-heads"] < params["LoRA"] < params["hydra (circuit)"] < params["DE(D)"]
    assert arithmetic["hydra (circuit)"] == 3 * arithmetic["CircAvg"] < 3 * arithmetic["single"]


def test_single_is_a_network_of_the_ensemble_and_a_control_is_trained_on(networks):
    single, plus = (networks.load(f"networks/{name}-0") for name in ("base", "plus"))
    ensemble = networks.units.units["rows/de-d-0"].after
    assert ensemble[0] == networks.units.units["rows/single-0"].after[0]
    assert not torch.equal(single.model.classifier.weight, plus.model.classifier.weight)
    assert torch.equal(  # the stem is frozen after pruning, and for the control too
        single.model.bert.embeddings.word_embeddings.weight, plus.model.bert.embeddings.word_embeddings.weight
    )


def test_members_that_differ_in_nothing_answer_alike_and_those_with_other_heads_do_not(networks):
    def disagreement(name):
        path = networks.units.root.parent / "results" / "toy" / "claims" / f"{name}-0.json"
        return json.loads(path.read_text())["columns"]["first"]["diversity"]["id_test"]["mutual_information"]

    assert disagreement("hydra-sampled-differ-in-none") == pytest.approx(0, abs=1e-9)
    assert disagreement("hydra-sampled-differ-in-heads") > 1e-7
    assert disagreement("hydra-sampled-differ-in-dropout") > 1e-9


def test_a_trunk_saves_arithmetic(networks):
    folder = networks.units.root.parent / "results" / "toy"
    whole = json.loads((folder / "hydra-circuit-0.json").read_text())["cost"]["mult_adds"]
    shared = json.loads((folder / "claims" / "hydra-circuit-trunk-of-1-0.json").read_text())["cost"]["mult_adds"]
    assert shared < whole


def test_a_variant_is_chosen_by_validation_figures_and_then_measured(networks):
    def control(method):
        return re.sub(r"circuit|joint", "random heads", method)

    variants = (
        lambda made, seed, heads: claimed.grouped(made, seed, heads=heads),
        lambda made, seed, heads: claimed.trunk(made, seed, 1, heads),
    )
    in_table = tuple(
        lambda made, seed, heads, method=method: row(made, method if heads == "circuit" else control(method), seed)
        for method in ("hydra (circuit)", "hydra (joint)")
    )
    unit = choice(networks, in_table, variants)
    assert chosen_rows(networks, in_table, variants, (0,)) == []
    networks.units.run([unit])
    folder = networks.units.root.parent / "results" / "toy"
    said = json.loads((folder / "chosen.json").read_text())
    assert set(said["figures"]) == {
        *("hydra (circuit)", "hydra (joint)", "DE(D)", "DE(D)+"),
        *("hydra (circuit), grouped", "hydra (circuit), trunk of 1"),
    }
    assert said["control"] == control(said["chosen"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evidence.choosing.BESIDE", ("DE(D)",))
        networks.units.run(chosen_rows(networks, in_table, variants, (0,)))
    best = said["figures"][said["chosen"]]
    assert best["scores"][said["score"]] == max(best["scores"].values())
    differences = json.loads((folder / "compared-chosen.json").read_text())["differences"]
    assert set(differences) == {f"{said['chosen']} minus DE(D)"}
    shown = page.choice_table(said).markdown()
    assert f"Chosen: {said['chosen']}" in shown
    ledger = {claim.says: claim.look("toy") for claim in verdicts.chosen({})}
    assert ledger["goal: it needs at most 0.9 of DE(D)+'s multiply-adds, every seed"].verdict == "undecided"  # of one
    assert verdicts.cheap("toy", said["chosen"], seeds=(0,)).verdict == "holds"
    assert verdicts.cheap("toy", said["chosen"], most=0.1, seeds=(0,)).verdict == "does not hold here"
    assert ledger["goal: it is above single+ in AUROC"] is None  # not compared here
    (above,) = agreement.control_of_chosen({"above": lambda column: column["ood"]["msp"]["average"]["auroc"]})
    assert above.look("toy") is None  # until all seeds are there
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "CONTROL_SEEDS", (0,))
        found = above.look("toy")
    results = summary.results_of("toy") | summary.results_of("toy/claims")
    one, other = (
        100 * results[said[who], 0]["columns"]["first"]["ood"]["msp"]["average"]["auroc"]
        for who in ("chosen", "control")
    )
    assert found.ours == f"{one:.2f} against {other:.2f} (more in {int(one > other)} of 1)"


def heads_unit(units, name):
    """The unit that chose a trained member's heads; where its rate is still to be chosen, those of the first trial."""
    after = units.units[name].after
    return next((one for one in after if one.startswith("heads/")), None) or heads_unit(units, after[0])


@pytest.mark.parametrize("heads", ["circuit", "random heads"])
def test_controls_of_variants_have_as_many_heads(networks, heads):
    made = Networks(networks.setting, Units(networks.units.root))
    rows = [claimed.trunk(made, 0, 1, heads), claimed.from_pretrained(made, 0, "average", heads=heads)]
    rows += [claimed.grouped(made, 0, heads=heads), claimed.own_bases(made, 0, 8, "average", heads)]
    assert all(one.method.startswith(f"hydra ({heads})") for one in rows)
    shared, *others = [heads_unit(made.units, one.members[0]) for one in rows]
    made.units.run([shared, *others])
    sets = made.head_sets(shared)
    assert {len(one) for one in sets} == {4 + 4}
    assert all(sum(head.layer == 0 for head in one) == 4 for one in sets)


def test_claims_may_answer_in_bf16_and_what_that_changes_is_measured(networks):
    rough = replace(networks, setting=replace(networks.setting, asked_in="bf16"))
    usual = row(networks, "hydra (circuit)", 0)
    part = ask_hydra(rough, "hydra-coarse-0", usual.members)
    made = judging.results_unit(rough, replace(usual, method="hydra (coarse)", parts=(part,)), "claims")
    networks.units.run([made, extras.rounding(networks, usual)])
    fine, coarse = (load_answers(networks.units.directory(one))["first"].logits for one in (usual.parts[0], part))
    assert not torch.equal(fine, coarse)
    assert torch.allclose(fine, coarse, atol=0.05)
    claim = page.read(networks.setting.name, "claims/hydra-coarse-0")
    assert claim["asked_in"] == ["bf16"]
    assert page.read(networks.setting.name, "hydra-circuit-0")["asked_in"] == ["fp32"]
    found = page.read(networks.setting.name, "precision")
    assert found["method"] == "hydra (circuit)"
    assert found["answered_in"]["bf16"]["accuracy"] == claim["columns"]["first"]["answers"]["accuracy"]


def test_paired_differences_are_those_of_the_figures(networks):
    networks.units.run(["draws/de-d-0", "draws/single-0"])
    found = compared(networks, [("DE(D)", "single")], [0])["DE(D) minus single"]
    methods = summary.summary_of(summary.results_of("toy"), "first", GROUPS, {})["methods"]
    expected = methods["DE(D)"]["auroc"]["mean"] - methods["single"]["auroc"]["mean"]
    assert 100 * found["auroc"]["value"] == pytest.approx(expected)
    assert found["auroc"]["low"] <= found["auroc"]["high"]


def test_what_is_done_is_passed_over_and_what_another_worker_has_is_left_to_it(tmp_path):
    units, done = Units(tmp_path), []
    units.add("first", lambda place: done.append("first"))
    units.add("second", lambda place: {"said": 2} if not done.append("second") else None, ["first"])
    units.run(["second"])
    assert done == ["first", "second"]
    assert units.done("second")["said"] == 2
    units.run(["second"])
    assert done == ["first", "second"]


def test_what_is_wanted_first_comes_first_right_behind_what_it_needs(tmp_path):
    units = Units(tmp_path)
    for name, after in (("slow", ()), ("quick", ()), ("of slow", ("slow",)), ("of both", ("quick", "slow"))):
        units.add(name, lambda place: None, after)
    assert units.needed(["of both", "of slow"]) == ["quick", "slow", "of both", "of slow"]
    units.run(["quick"])
    assert units.needed(["of slow", "of both"]) == ["slow", "of slow", "of both"]


def test_a_results_file_says_that_a_unit_and_what_it_was_made_of_are_done(tmp_path):
    made, done = tmp_path / "results.json", []
    for kept in ("first", "second"):  # a new checkout has the results and nothing else
        units = Units(tmp_path / kept)
        units.add("before", lambda place: done.append("before"))
        units.add("row", lambda place: done.append("row") if made.write_text("{}") else None, ["before"], leaves=made)
        units.run(["row"])
    assert done == ["before", "row"]
    made.unlink()
    units.run(["row"])
    assert done == ["before", "row", "before", "row"]


def test_hours_go_on_from_what_was_told_before(tmp_path):
    told = tmp_path / "hours.json"
    told.write_text('{"hours": 2.0}')
    units = Units(tmp_path / "kept")
    units.add("one", lambda place: None)
    units.run(["one"])
    (units.directory("one") / "done.json").write_text('{"seconds": 3600}')
    assert hours(units, told) == 3.0
    told.write_text('{"hours": 3.0}')
    assert hours(units, told) == 3.0
    assert hours(Units(units.root), told) == 3.0  # it is in no plan any more


def test_a_new_checkout_trains_at_the_rate_that_was_chosen_and_takes_the_search_from_its_journal(networks, tmp_path):
    again = Networks(replace(networks.setting, kept=tmp_path / "kept"), Units(tmp_path / "kept"))
    circuits = heads_of(again, "circuit", 0)
    again.units.run([circuits])
    assert not (again.units.root / "rates").exists()
    assert again.units.done("networks/base-0")["rate"] == networks.units.done("networks/base-0")["rate"]
    assert again.head_sets(circuits) == networks.head_sets(circuits)
    ranked = [one.ranking("rankings/circuit-avg-0").how for one in (networks, again)]
    assert ranked[0]["seconds"] == ranked[1]["seconds"]  # it was not searched again


def test_another_seed_takes_the_rate_that_was_chosen_and_does_not_wait_for_the_first(networks, tmp_path):
    again = Networks(networks.setting, Units(tmp_path))
    assert again.units.needed([again.base(10)]) == ["networks/base-10"]


def test_members_have_the_rate_of_the_control_where_the_setting_says_so(networks, tmp_path):
    setting = replace(networks.setting, same_rate="plus", post_rates=(1.0, 2.0))
    again = Networks(setting, Units(tmp_path))
    members = [again.member("alike", 0, m, heads_of(again, "random", 0)) for m in (0, 1)]
    assert not [one for one in again.units.needed(members) if "alike" in one and one.startswith("rates/")]
    again.units.run(members[:1])
    assert again.units.done(members[0])["rate"] == networks.units.done("networks/plus-0")["rate"]


def test_a_journal_of_another_network_is_not_gone_on_with(networks, tmp_path):
    def load(seed):
        model = networks.setting.load(seed)
        torch.nn.init.normal_(model.classifier.weight, std=0.1)
        return model

    again = Networks(replace(networks.setting, load=load), Units(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made_networks, "RESULTS", tmp_path / "results")
        kept = again.results("journals/circuit-avg-0/journal", "jsonl")
        kept.parent.mkdir(parents=True)
        kept.write_text(networks.units.directory("rankings/circuit-avg-0").joinpath("journal.jsonl").read_text())
        again.units.run([again.circuit(0, "avg", 6)])
    assert kept.read_text() == (tmp_path / "rankings" / "circuit-avg-0" / "journal.jsonl").read_text()


def test_a_unit_that_fails_stays_to_be_done_and_does_not_stop_others(tmp_path):
    units, is_broken, done = Units(tmp_path), [True], []

    def may_fail(place):
        if is_broken:
            raise ValueError("broken")

    units.add("one", may_fail)
    units.add("after", lambda place: done.append("after"), ["one"])
    units.add("other", lambda place: done.append("other"))
    with pytest.raises(SystemExit, match=r"one, after; failed\.txt says why"):
        units.run(["after", "other"])
    assert done == ["other"]
    assert "broken" in (tmp_path / "one" / "failed.txt").read_text()
    is_broken.clear()
    time.sleep(0.01)  # a new run begins after the old one failed
    units.run(["after", "other"])
    assert done == ["other", "after"]


def test_a_plan_that_fails_does_not_keep_another_from_its_turn(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_EVIDENCE_WORKER", "0")
    first, second, done = Units(tmp_path / "first"), Units(tmp_path / "second"), []

    def fail(place):
        raise ValueError("broken")

    first.add("one", fail)
    second.add("other", lambda place: done.append("other"))
    threads = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit, match=r"one; failed\.txt says why"):
            workers.run({first: ["one"], second: ["other"]}, 1, None)
    finally:
        torch.set_num_threads(threads)
    assert done == ["other"]


def test_latency_needs_no_trained_network_and_times_a_hydra_with_the_trunk_it_has(networks, tmp_path):
    again, path = Networks(networks.setting, Units(tmp_path / "kept")), tmp_path / "found.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "write_results", lambda name, found: path.write_text(json.dumps(found)))
        patch.setattr(timing, "ROUNDS", 2)
        timing.measure(again, [], ["hydra (circuit), 8 heads"])
    found = json.loads(path.read_text())
    assert set(found["ratios"]) == {*SEEDS_OF, "hydra (circuit), 8 heads"}
    assert found["ratios"]["single"] == 1.0
    assert not again.units.root.exists()
    hydra = timing._model(again, "hydra (circuit)")
    assert set(hydra.trunk.values()) == {0}
    assert hydra.num_members == 3
    assert set(timing._model(again, "hydra (circuit), trunk of 1").trunk.values()) == {1}


def test_a_variant_from_the_pretrained_network_is_timed_with_nothing_shared(networks):
    heads = [HeadSet.all(networks.setting.load(0)).to_json()] * 3
    name = "hydra (circuit), from pre-trained, grouped"
    path = networks.results(f"claims/{file_name(name, 0)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kept": heads}))
    try:
        found = timing._model(networks, name)
    finally:
        path.unlink()
    # Three networks in one, with nothing stored once.
    assert sum(p.numel() for p in found.parameters()) == 3 * sum(
        p.numel() for p in networks.setting.load(0).parameters()
    )


def test_pairs_of_figures_must_agree(networks):
    name = networks.setting.name
    found = {claim.says: claim.look(name) for claim in (*agreement.scores(), *agreement.sweep((9, 6)))}
    assert all(one is not None for one in found.values())
    plain = page.read(name, "hydra-circuit-0")["columns"]["first"]
    mutual, msp = (100 * plain["ood"][score]["average"]["auroc"] for score in ("mutual_information", "msp"))
    says = "mutual information of hydra (circuit) has a higher AUROC than its MSP"
    assert found[says].ours.startswith(f"{mutual:.2f} against {msp:.2f}")
    assert found[says].verdict == agreement.agreed([(mutual, msp)])
    assert [claim.look(name) for claim in agreement.seeds()] == [None]
    assert [claim.look(name) is None for claim in agreement.diversity(("order", "dropout"))] == [False]
