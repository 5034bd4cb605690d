"""Searches: journals, lazy search, work, refusals."""

import copy
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from families import _timm, model_of
from hydra_ensembles import Backbone, HeadSet, prune
from hydra_ensembles.errors import HydraWarning
from hydra_ensembles.heads.cost import block_cost, readout_cost, stem_cost
from hydra_ensembles.scoring import JournalError, ScoringError, circuit_ranking, taylor_ranking
from hydra_ensembles.scoring.candidates import candidate_logits
from hydra_ensembles.scoring.objectives import Outcome
from hydra_ensembles.scoring.work import Work, least_block_forwards

TESTS = Path(__file__).parent.parent


def images(rows, seed, shift=0.0):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) + shift


def labelled(rows=48, seed=0):
    return images(rows, seed), torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(seed))


def test_a_search_goes_on_from_its_journal(tmp_path):
    model, data, other = model_of("timm"), labelled(), images(48, 1, 0.5)
    path = tmp_path / "journal.jsonl"
    whole = circuit_ranking(model, data, other, "avg", 6)
    circuit_ranking(model, data, other, "avg", 2, journal=path)
    content = path.read_text()
    path.write_text(content + '{"head": ["vision", 0')  # a line cut off by a kill
    resumed = circuit_ranking(model, data, other, "avg", 6, journal=path)
    assert (resumed.removed, resumed.scores) == (whole.removed, whole.scores)
    assert path.read_text().startswith(content)
    assert len(path.read_text().splitlines()) == 7
    short = circuit_ranking(model, data, other, "avg", 3, journal=path)
    assert short.removed == whole.removed[:3]


@pytest.mark.parametrize("search", ["fast", "lazy"])
def test_a_killed_search_gives_the_ranking_of_an_undisturbed_one(tmp_path, search):
    script = tmp_path / "search.py"
    script.write_text(
        textwrap.dedent(f"""
        import json, os, signal, sys
        sys.path.insert(0, {str(TESTS)!r})
        import torch
        torch.set_num_threads(1)
        from families import model_of
        from hydra_ensembles.scoring import circuit_ranking, circuits, journal
        g = torch.Generator().manual_seed(0)
        known, unknown = torch.randn(64, 3, 16, 16, generator=g), torch.randn(64, 3, 16, 16, generator=g) + 0.3
        labels = torch.randint(0, 5, (64,), generator=g)
        kill_after = int(sys.argv[2])
        append = journal.Journal.append
        def and_die(self, entry):
            append(self, entry)
            if len(self.entries) == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
        journal.Journal.append = and_die
        ranking = circuit_ranking(model_of("timm"), (known, labels), unknown, "avg", 7, search={search!r},
                                  batch_size=8, journal=sys.argv[1])
        print(json.dumps([ranking.removed, ranking.scores]))
        """)
    )

    def run(journal, kill_after):
        return subprocess.run(
            [sys.executable, script, journal, str(kill_after)], capture_output=True, text=True, check=False
        )

    undisturbed = run(tmp_path / "a.jsonl", 0)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert run(tmp_path / "b.jsonl", 3).returncode == -signal.SIGKILL
    resumed = run(tmp_path / "b.jsonl", 0)
    assert json.loads(resumed.stdout) == json.loads(undisturbed.stdout)


def test_a_journal_of_another_search_is_refused(tmp_path):
    model, data, other = model_of("timm"), labelled(), images(48, 1)
    path = tmp_path / "journal.jsonl"
    circuit_ranking(model, data, other, "avg", 1, journal=path)
    with pytest.raises(JournalError, match="its objective is 'avg', now 'acc'"):
        circuit_ranking(model, data, other, "acc", 1, journal=path)
    with pytest.raises(JournalError, match="its id_data is"):
        circuit_ranking(model, labelled(seed=5), other, "avg", 1, journal=path)
    with pytest.raises(JournalError, match="its model is"):
        circuit_ranking(model_of("timm-mean"), data, other, "avg", 1, journal=path)
    for content in (b"not a journal\n", b"a thesis, its end not yet written", b"{}", b"\xff\xfe\n"):
        path.write_bytes(content)
        with pytest.raises(JournalError, match="not a journal"):
            circuit_ranking(model, data, other, "avg", 1, journal=path)
        assert path.read_bytes() == content


@pytest.mark.parametrize("content", ["", '{"ta', '{"task": {"objective": "av'])
def test_a_journal_cut_off_in_its_first_line_is_begun_again(content, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "journal.jsonl"
    path.write_text(content)
    ranking = circuit_ranking(model_of("timm"), labelled(), images(48, 1, 0.5), "avg", 1, journal="~/journal.jsonl")
    assert json.loads(path.read_text().splitlines()[1])["head"] == list(ranking.removed[0])


@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_a_lazy_search_with_no_risk_is_the_exact_one(objective):
    model, data, other = model_of("timm"), labelled(64), images(64, 1, 0.2)
    exact = circuit_ranking(model, data, other, objective, 8, batch_size=8)
    lazy = circuit_ranking(model, data, other, objective, 8, batch_size=8, search="lazy", risk=1e-14)
    assert lazy.removed == exact.removed
    assert lazy.scores == pytest.approx(exact.scores, abs=2 / 64)
    assert lazy.how["rival"] < 1e-13


def test_a_lazy_search_spends_less_and_says_how_sure_it_is():
    model, data, other = model_of("timm"), labelled(128), images(128, 1, 0.2)
    exact = circuit_ranking(model, data, other, "avg", 8, batch_size=8)
    lazy = circuit_ranking(model, data, other, "avg", 8, batch_size=8, search="lazy")
    assert lazy.how["block_forwards"] < 0.7 * exact.how["block_forwards"]
    assert 0 < lazy.how["rival"] <= 0.1
    assert 0 < lazy.how["regret"] < 0.05


@pytest.mark.parametrize("batch_size", [128, 3])
def test_a_lazy_search_runs_on_any_number_of_batches(batch_size):
    ranking = circuit_ranking(
        model_of("timm"), labelled(7), images(5, 1), "avg", 3, batch_size=batch_size, search="lazy"
    )
    assert len(ranking) == 3


def test_block_forwards_are_what_torch_counts():
    model = model_of("timm")
    backbone = Backbone.of(model)
    tower = backbone.towers["vision"]
    heads = HeadSet.all(model)
    work, x = Work(heads), images(2, 0)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        groups = [logits for _, logits in candidate_logits(backbone, x, list(heads), work)]
    readings = 2 * sum(len(logits) for logits in groups)
    outside = 2 * stem_cost(tower).mult_adds + readings * readout_cost(tower.readout, 17).mult_adds
    one = block_cost(tower.blocks[0], 17, 17).mult_adds
    assert work.block_forwards * one == pytest.approx(counter.get_total_flops() / 2 - outside, rel=1e-9)


def test_a_search_spends_hardly_more_than_reuse_of_prefixes_allows():
    model = model_of("timm")
    ranking = circuit_ranking(model, labelled(8), images(8, 1), "avg", 5)
    heads = HeadSet.all(model)
    least = 16 * least_block_forwards(Backbone.of(model), heads, ranking.removed, heads, {"vision": 17})
    assert least <= ranking.how["block_forwards"] < 1.1 * least
    plain = circuit_ranking(model, labelled(8), images(8, 1), "avg", 5, search="plain")
    assert plain.how["block_forwards"] == (12 + 11 + 10 + 9 + 8) * 3 * 16


def test_the_model_is_left_as_it_was():
    model = model_of("timm")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for search in ("plain", "fast", "lazy"):
        circuit_ranking(model, labelled(8), images(8, 1), "avg", 2, search=search)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_in_bf16_is_searched_in_fp32():
    model = copy.deepcopy(model_of("timm"))
    ranking = circuit_ranking(model.to(torch.bfloat16), labelled(8), images(8, 1), "ood", 2)
    model.float()
    assert circuit_ranking(model, labelled(8), images(8, 1), "ood", 2).removed == ranking.removed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "f1"}, "objective 'f1' is not known; known: acc, ood, avg"),
        ({"ood_data": None}, "needs OOD data"),
        ({"remove": 12}, "between 1 and 11 of 12 heads"),
        ({"remove": 0}, "between 1 and 11"),
        ({"search": "quick"}, "known: fast, plain, lazy"),
        ({"layers": [7]}, "layers are 0 to 2"),
        ({"towers": ["text"]}, "it has vision"),
        ({"risk": 0.7}, "between 0 and 0.5"),
        ({"id_data": images(4, 0)}, "have no labels"),
        ({"id_data": (images(4, 0), torch.arange(4) + 2)}, "label 5 was found, but the model has 5 classes"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(change, message):
    settings = {"id_data": labelled(8), "ood_data": images(8, 1), "objective": "avg", "remove": 2} | change
    with pytest.raises(ScoringError, match=message) as caught:
        circuit_ranking(model_of("timm"), **settings)
    assert "\n" not in str(caught.value)


def test_known_rows_of_one_class_are_told():
    with pytest.warns(HydraWarning, match="all known rows have label 3"):
        circuit_ranking(model_of("timm"), (images(8, 0), torch.full((8,), 3)), objective="acc", remove=1)


def test_a_model_without_a_classifier_has_no_answers_to_score():
    model, said = _timm(num_classes=0), "has no classifier, so no answers to score heads by"
    with pytest.raises(ScoringError, match=said):
        circuit_ranking(model, labelled(8), images(8, 1), "avg", 1)
    with pytest.raises(ScoringError, match=said):
        taylor_ranking(model, labelled(8), 1)


def test_logits_that_are_not_finite_are_refused():
    with pytest.raises(ScoringError, match="not finite"):
        circuit_ranking(model_of("timm"), labelled(8), images(8, 1) / 0.0, "avg", 2)


@pytest.mark.parametrize("name", ["timm", "torchvision", "hf-vit"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_images_come_in_any_dtype_or_in_a_mapping(name, dtype):
    model = copy.deepcopy(model_of(name)).to(dtype)
    known, labels = labelled(12)
    known, unknown = known.bfloat16(), images(12, 1, 0.5).bfloat16()
    first = prune(model, HeadSet.sample(model, 8, 0)).train()

    def rankings(model, known, unknown, companion):
        how = {"objective": "avg", "remove": 2}
        found = [circuit_ranking(model, (known, labels), unknown, search=search, **how) for search in ("plain", "fast")]
        found.append(circuit_ranking(model, (known, labels), unknown, companions=[companion], **how))
        return [(one.removed, one.scores) for one in [*found, taylor_ranking(model, (known, labels), 1)]]

    exact = torch.promote_types(dtype, torch.float32)
    expected = rankings(
        copy.deepcopy(model).to(exact), known.to(exact), unknown.to(exact), copy.deepcopy(first).to(exact).eval()
    )
    assert rankings(model, known, unknown, first) == expected
    assert rankings(model, {"pixel_values": known}, {"pixel_values": unknown}, first) == expected
    assert first.training
    with torch.autocast("cpu", torch.bfloat16):
        assert rankings(model, known, unknown, first) == expected


def test_a_journal_of_the_same_weights_in_another_model_is_refused(tmp_path):
    data, other, path = labelled(), images(48, 1, 0.5), tmp_path / "journal.jsonl"
    one, another = (_timm(global_pool="avg", pool_include_prefix=flag).eval() for flag in (False, True))
    another.load_state_dict(one.state_dict())
    circuit_ranking(one, data, other, "avg", 1, journal=path)
    with pytest.raises(JournalError, match="belongs to another search: its settings"):
        circuit_ranking(another, data, other, "avg", 1, journal=path)


def test_outcomes_without_rows_lie_where_others_do():
    with FakeTensorMode():
        rows = torch.zeros(2, 3, device="cuda")
        some = Outcome(rows.bool(), rows, rows)
        joined = Outcome.join([Outcome.join([], 2, rows.device), some])
    assert joined.known_AN.shape == (2, 3)


def test_a_journal_that_two_searches_wrote_at_once_is_refused(tmp_path):
    model, known, journal = model_of("timm"), labelled(16), tmp_path / "j.jsonl"
    circuit_ranking(model, known, objective="acc", remove=1, journal=journal)
    task, entry = journal.read_text().splitlines()
    journal.write_text("\n".join([task, entry, entry]) + "\n")
    with pytest.raises(JournalError, match="twice, as two searches at once write it; name another file"):
        circuit_ranking(model, known, objective="acc", remove=2, journal=journal)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_taylor_scores_that_are_not_finite_are_refused(scope):
    inputs, labels = labelled(8)
    inputs[3, 0, 0, 0] = float("nan")
    with pytest.raises(ScoringError, match="gradients that are not finite"):
        taylor_ranking(model_of("timm"), (inputs, labels), 1, scope=scope)
