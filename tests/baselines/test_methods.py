"""Every method is trained, answers with members, has a cost, and is what its name says."""

import copy

import pytest
import torch

from baselines.resuming import Interrupted, interrupt
from families import CLASSES, model_of
from hydra_ensembles import HeadSet, Protocol, evaluate, fuse, prune
from hydra_ensembles.backbones import Backbone
from hydra_ensembles.baselines import (
    BaselineError,
    ClassifierEnsemble,
    DeepEnsemble,
    LoraEnsemble,
    McDropout,
    Method,
    Mimo,
)
from hydra_ensembles.baselines.classifiers import draw_classifier
from hydra_ensembles.baselines.lora import LoraTrainee
from hydra_ensembles.heads import own_logits, single_cost
from hydra_ensembles.members.recipes import FineTuningError
from members.training import QUICK, labelled, same
from zero_shots import classifier_of

FAMILIES = ["timm", "bert", "distilbert", "hf-vit"]


def whole(family):
    model = copy.deepcopy(model_of(family))
    return prune(model, HeadSet.all(model)).eval()


def methods(family):
    return {
        "single": DeepEnsemble([whole(family)]),
        "deep ensemble": DeepEnsemble([whole(family) for _ in range(3)]),
        "classifiers": ClassifierEnsemble(whole(family), 3),
        "dropout": McDropout(whole(family), passes=3, p=0.1),
        "lora": LoraEnsemble(whole(family), 3),
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["single", "deep ensemble", "classifiers", "dropout", "lora"])
def test_a_method_is_fitted_answers_and_has_a_cost(family, name):
    method, data = methods(family)[name], labelled(family)
    assert isinstance(method, Method)
    method.fit(data, None, QUICK)
    with torch.no_grad():
        logits = method.members(data[0])
    members = 1 if name == "single" else 3
    assert logits.shape == (len(data[1]), members, CLASSES)
    if members > 1:
        assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-4, "members answer alike"
    one, cost = single_cost(Backbone.of(model_of(family))), method.cost()
    assert cost.mult_adds >= one.mult_adds
    assert cost.params >= one.params


def test_evaluate_takes_a_method_as_it_takes_a_hydra():
    data = labelled("bert")
    method = DeepEnsemble([whole("bert"), whole("bert")])
    found = evaluate(method, Protocol(data), resamples=0)
    assert found.about["members"] == 2


def test_deep_ensembles_train_each_network_by_itself():
    data = labelled("timm")
    together = DeepEnsemble([whole("timm"), whole("timm")])
    together.fit(data, None, QUICK, seeds=[5, 6])
    alone = DeepEnsemble([whole("timm")])
    alone.fit(data, None, QUICK, seeds=[6])
    assert same(together.networks[1], alone.networks[0])
    assert together.cost().params == 2 * alone.cost().params


def test_classifiers_share_an_encoder_that_stays_as_it_was():
    start, data = whole("bert"), labelled("bert")
    method = ClassifierEnsemble(start, 3)
    method.fit(data, None, QUICK)
    classifier = ("classifier.weight", "classifier.bias")
    for network in method.networks:
        for name, tensor in network.model.state_dict().items():
            is_same = torch.equal(tensor, start.model.state_dict()[name])
            assert is_same != (name in classifier), name
    with torch.no_grad():
        alone = torch.stack([network(data[0]) for network in method.networks], dim=1)
        assert torch.allclose(method.members(data[0]), alone, atol=1e-5)
    extra = method.cost().params - single_cost(start.backbone).params
    assert extra == 2 * sum(start.model.state_dict()[name].numel() for name in classifier)


@pytest.mark.parametrize("family", FAMILIES)
def test_classifiers_answer_as_a_hydra_of_their_networks_but_with_no_copy_of_them(family):
    method, (inputs, _) = ClassifierEnsemble(whole(family), 3), labelled(family)
    answers = method.members(inputs)
    torch.testing.assert_close(answers, fuse(list(method.networks)).members(inputs))
    answers.square().sum().backward()
    encoder, *_ = method.networks[0].parameters()
    assert encoder.grad is not None, "a copy answered"
    assert all(list(network.parameters())[-1].grad is not None for network in method.networks)


@pytest.mark.parametrize("kind", [ClassifierEnsemble, LoraEnsemble])
@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_zero_shot_classifier_is_refused_where_a_classifier_is_trained(kind, is_pruned):
    model = classifier_of("open_clip")
    with pytest.raises(BaselineError, match="compares images with texts"):
        kind(prune(model, HeadSet.all(model)) if is_pruned else model)


def test_classifiers_of_another_seed_are_others_and_of_the_same_the_same():
    first, again, other = (ClassifierEnsemble(whole("timm"), 2, seed) for seed in (0, 0, 2))
    assert same(first, again)
    assert not same(first.networks[0], first.networks[1])
    assert not same(first.networks[0], other.networks[0])


def test_dropout_draws_the_same_each_time_and_leaves_the_network_as_it_was():
    inputs, _ = labelled("bert")
    network = whole("bert")
    method = McDropout(network, passes=4, p=0.2)
    with torch.no_grad():
        plain = own_logits(network, inputs)
        first, again = method.members(inputs), method.members(inputs)
        assert torch.equal(first, again)
        assert torch.equal(own_logits(network, inputs), plain)
    assert not network.training
    assert (first - plain[:, None]).abs().amax(dim=(0, 2)).min() > 1e-4
    assert method.cost().params == single_cost(network.backbone).params


def test_seeds_of_methods_leave_the_generators_of_every_gpu_as_they_were(monkeypatch):
    """As torch sees two GPUs: `torch.manual_seed` seeds all of them, wherever the network is."""
    gpus = {"states": ["one", "other"]}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(gpus["states"]))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: gpus.update(states=list(states)))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: gpus.update(states=[seed, seed]))
    start, (inputs, _) = whole("timm"), labelled("timm", rows=2)
    for draw in (
        lambda: McDropout(start, p=0.1).members(inputs),
        lambda: draw_classifier(copy.deepcopy(start), 0),
        lambda: LoraTrainee(copy.deepcopy(start), 2, 8, 0),
        lambda: Mimo(start),
    ):
        draw()
        assert gpus["states"] == ["one", "other"]
    torch.manual_seed(0)
    assert gpus["states"] == [0, 0], "torch seeds GPUs in another way now, and this test sees nothing"


def test_a_network_without_dropout_is_refused():
    with pytest.raises(BaselineError, match=r"no dropout to keep on; give p=0\.1"):
        McDropout(whole("timm"))


def test_lora_changes_queries_keys_values_and_classifier_by_a_low_rank_and_nothing_else():
    start, data = whole("bert"), labelled("bert")
    method = LoraEnsemble(start, 2, rank=2)
    before = method.cost()
    method.fit(data, None, QUICK)
    for network in method.networks:
        changed = {
            name: tensor - start.model.state_dict()[name]
            for name, tensor in network.model.state_dict().items()
            if not torch.equal(tensor, start.model.state_dict()[name])
        }
        weights = [name for name in changed if not name.startswith("classifier")]
        assert weights
        assert all(name.endswith(("query.weight", "key.weight", "value.weight")) for name in weights)
        assert all(torch.linalg.matrix_rank(changed[name].double(), rtol=1e-4) <= 2 for name in weights)
    layers, width, rank = 3, start.model.config.hidden_size, 2
    assert method.adapter_params == layers * 3 * 2 * rank * width
    classifier = sum(p.numel() for p in start.model.classifier.parameters())
    assert method.cost().params == single_cost(start.backbone).params + 2 * method.adapter_params + classifier
    assert method.cost() == before


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lora_ensemble_counts_what_it_trains(family):
    start = whole(family)
    method, trainee = LoraEnsemble(start, 3, rank=2), LoraTrainee(copy.deepcopy(start), 2, 8, 0)
    trained = sum(p.numel() for p in trainee.trained(QUICK).values())
    classifier = trained - sum(p.numel() for p in trainee.adapters.values())
    assert method.cost().params == single_cost(start.backbone).params - classifier + 3 * trained


def test_a_lora_member_is_an_ordinary_member_afterwards(tmp_path):
    data = labelled("distilbert")
    method = LoraEnsemble(whole("distilbert"), 1)
    method.fit(data, None, QUICK)
    member = method.networks[0]
    member.save(tmp_path / "member")
    again = type(member).load(tmp_path / "member")
    with torch.no_grad():
        assert torch.equal(member(data[0]), again(data[0]))


def test_an_interrupted_lora_ensemble_is_as_it_was_and_goes_on_where_it_stopped(tmp_path):
    data, count, seen = labelled("bert"), iter(range(100)), []
    method, alone = LoraEnsemble(whole("bert"), 2), LoraEnsemble(whole("bert"), 2)
    before = copy.deepcopy(method)

    def interrupt_second_member(_):
        if next(count) == QUICK.steps + 2:
            raise Interrupted

    scratch = {"checkpoint": tmp_path / "scratch", "checkpoint_every_s": 0}
    with pytest.raises(Interrupted):
        method.fit(data, None, QUICK, **scratch, progress=interrupt_second_member)
    assert same(method, before)
    assert method.cost().mult_adds == before.cost().mult_adds
    method.fit(data, None, QUICK, **scratch, progress=seen.append)
    alone.fit(data, None, QUICK)
    assert [found.step for found in seen] == list(range(4, QUICK.steps + 1))
    assert same(method, alone)
    assert not same(method, before)
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("build", "before", "now", "said"),
    [
        (lambda alpha: LoraEnsemble(whole("bert"), 1, alpha=alpha), 8, 64, "alpha 8, now 64"),
        (lambda p: McDropout(whole("bert"), p=p), 0.1, 0.9, "p 0.1, now 0.9"),
    ],
    ids=["lora", "dropout"],
)
def test_a_training_with_other_settings_is_not_gone_on_with(build, before, now, said, tmp_path):
    data, scratch = labelled("bert"), {"checkpoint": tmp_path, "checkpoint_every_s": 0, "progress": interrupt}
    with pytest.raises(Interrupted):
        build(before).fit(data, None, QUICK, **scratch)
    with pytest.raises(FineTuningError, match=said):
        build(now).fit(data, None, QUICK, **scratch)
