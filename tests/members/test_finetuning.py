"""Fine-tuning moves what the recipe says, as the recipe says, and leaves the rest as it was."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from families import CLASSES, own_output, perturbed
from hydra_ensembles import HeadSet, fuse, prune
from hydra_ensembles.data import TensorBatches, load_data
from hydra_ensembles.data.batches import counted_on
from hydra_ensembles.errors import HydraWarning
from hydra_ensembles.fusion import FusionError
from hydra_ensembles.members.finetuning import finetune
from hydra_ensembles.members.history import Evaluation, History
from hydra_ensembles.members.parallel import finetune_members
from hydra_ensembles.members.rates import choose_learning_rate
from hydra_ensembles.members.recipes import RECIPES, Diverged, FineTuningError, Recipe, rate_at
from hydra_ensembles.members.trainee import Trainee, plain_attention
from hydra_ensembles.uncertainty import Fitted, OODThreshold, Temperature
from members.training import QUICK, labelled, member_of, plain_of, same
from tiny_sets import IMAGE

FAMILIES = ["timm", "torchvision", "bert", "distilbert", "hf-vit"]


@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss_of_a_member(family):
    member, data = member_of(family), labelled(family)
    history = finetune(member, data, data, replace(QUICK, steps=40, learning_rate=1e-2))
    assert sum(history.losses[-5:]) < 0.8 * sum(history.losses[:5])
    assert len(history.losses) == 40
    assert history.evaluations[-1].step == 40
    assert history.evaluations[-1].nll < history.evaluations[0].nll
    assert not member.training
    with torch.no_grad():
        nll = F.cross_entropy(member(data[0]).double(), data[1])
    assert history.evaluations[-1].nll == pytest.approx(float(nll), abs=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_seed_gives_the_same_bits_and_another_does_not(precision):
    data, recipe = labelled("bert"), replace(QUICK, precision=precision)
    before = torch.get_rng_state()
    runs = []
    for seed in (3, 3, 4):
        member = member_of("bert")
        runs.append((member, finetune(member, data, None, recipe, seed=seed)))
        torch.rand(5)
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1].losses == runs[1][1].losses
    assert not same(runs[0][0], runs[2][0])
    assert all(p.dtype == torch.float32 for p in runs[0][0].parameters())
    torch.set_rng_state(before)
    finetune(member_of("bert"), data, None, recipe)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers were used up"


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_a_recipe_is_this_plain_loop(optimiser):
    """The reference: torch alone, batches in order, schedule, smoothing, clipping and decay written out."""
    inputs, labels = labelled("timm")
    inputs = inputs.double()  # AdamW makes steps of a gradient's rounding, too: in double there is next to none
    recipe = Recipe(
        "loop",
        learning_rate=0.05,
        head_learning_rate=0.1,
        steps=7,
        optimiser=optimiser,
        weight_decay=0.2,
        warm_up=3,
        decay="linear",
        label_smoothing=0.1,
        clip_norm=0.3,
    )
    trained, reference = plain_of("timm").double(), plain_of("timm").double()
    batches = list(zip(inputs.split(8), labels.split(8), strict=True))
    finetune(trained, batches, None, recipe)

    rates = [0.05 / 3, 0.1 / 3, 0.05, 0.05, 0.05 * 3 / 4, 0.05 * 2 / 4, 0.05 / 4]
    undecayed = [n for n, _ in reference.named_parameters() if n.endswith("bias") or "norm" in n]
    groups = [
        {"params": [p], "weight_decay": 0.0 if n in undecayed else 0.2, "share": 2 if n.startswith("head.") else 1}
        for n, p in reference.named_parameters()
    ]
    make = torch.optim.AdamW if optimiser == "adamw" else lambda g: torch.optim.SGD(g, momentum=0.9)
    steps, reference = make(groups), reference.train()
    for step, rate in enumerate(rates):
        images, targets = batches[step % len(batches)]
        log_probs = reference(images).log_softmax(dim=-1)
        loss = -(0.9 * log_probs[torch.arange(len(targets)), targets] + 0.1 * log_probs.mean(dim=-1)).mean()
        steps.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in reference.parameters()]).norm()
        for p in reference.parameters():
            p.grad *= min(1.0, 0.3 / float(norm))
        for group in steps.param_groups:
            group["lr"] = rate * group["share"]
        steps.step()
    for (name, ours), theirs in zip(trained.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


STEMS = {
    "timm": ("patch_embed.", "cls_token", "pos_embed"),
    "bert": ("bert.embeddings.",),
    "torchvision": ("conv_proj.", "class_token", "encoder.pos_embedding"),
}
BLOCKS = {"timm": "blocks.{}.", "bert": "bert.encoder.layer.{}.", "torchvision": "encoder.layers.encoder_layer_{}."}
CLASSIFIERS = {"timm": "head.", "bert": "classifier.", "torchvision": "heads.head."}


@pytest.mark.parametrize("family", STEMS)
@pytest.mark.parametrize(
    ("change", "frozen_blocks"),
    [
        ({}, []),
        ({"freeze_stem": True}, []),
        ({"freeze_blocks": 2}, [0, 1]),
        ({"train_last_blocks": 1}, [0, 1]),
        ({"train_last_blocks": 3}, []),
        ({"train_last_blocks": 2, "freeze_blocks": 2}, [0, 1]),
        ({"head_only": True}, [0, 1, 2]),
    ],
)
def test_what_is_frozen_does_not_move_by_a_bit_and_the_rest_does(family, change, frozen_blocks):
    model = plain_of(family)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    recipe = replace(QUICK, steps=3, weight_decay=0.1, optimiser="sgd", learning_rate=0.1, **change)
    history = finetune(model, labelled(family), None, recipe)
    frozen_names = [BLOCKS[family].format(layer) for layer in frozen_blocks]
    if change:
        frozen_names.extend(STEMS[family])
    moved = 0
    for name, parameter in model.named_parameters():
        is_frozen = name.startswith(tuple(frozen_names)) if frozen_names else False
        if change.get("head_only"):
            is_frozen = not name.startswith(CLASSIFIERS[family])
        # Keys shift all scores of a query alike: their bias has no gradient but rounding.
        if ".key.bias" not in name:
            assert torch.equal(parameter, before[name]) == is_frozen, name
        moved += 0 if is_frozen else parameter.numel()
        assert parameter.requires_grad
        assert parameter.grad is None
    assert history.trained_parameters == moved


@pytest.mark.parametrize("trunk", [0, 1, 2])
@pytest.mark.parametrize("family", ["timm", "bert"])
def test_fuse_finds_a_trunk_of_the_blocks_that_were_frozen(family, trunk):
    model = plain_of(family)
    full = HeadSet.all(model)
    (tower,) = full.towers
    members = []
    for m in range(2):
        kept = [range(4) if layer < trunk else {m, 2} for layer in range(3)]
        members.append(prune(model, HeadSet.of({tower: kept}, {tower: full.num_heads[0]})))
    finetune_members(members, labelled(family), None, replace(QUICK, steps=2), freeze_blocks=trunk)
    hydra = fuse(members, mlp="grouped")
    assert hydra.trunk == {tower: trunk}
    inputs, _ = labelled(family)
    with torch.no_grad():
        for m, member in enumerate(members):
            torch.testing.assert_close(hydra.members(inputs)[:, m], member(inputs), atol=1e-5, rtol=1e-5)


def test_a_hydra_trains_each_member_as_itself():
    """Nothing shared, no dropout: M times the rate makes up for the mean over M members."""
    data = labelled("timm")
    members = [prune(perturbed(plain_of("timm"), seed), HeadSet.sample(plain_of("timm"), 7, seed)) for seed in (5, 6)]
    hydra = fuse(members, mlp="grouped")
    recipe = replace(QUICK, steps=4, optimiser="sgd", learning_rate=0.02)
    finetune(hydra, data, None, replace(recipe, learning_rate=0.04))
    before = copy.deepcopy(members)
    for m, member in enumerate(members):
        finetune(member, data, None, recipe)
        with torch.no_grad():
            torch.testing.assert_close(hydra.members(data[0])[:, m], member(data[0]), atol=1e-4, rtol=1e-4)
            assert (before[m](data[0]) - member(data[0])).abs().max() > 1e-2


def test_what_was_fitted_to_other_weights_is_dropped():
    hydra = fuse([member_of("timm", seed) for seed in range(2)])
    hydra.fitted = Fitted(Temperature(1.7), OODThreshold("energy", -2.0, 0.95))
    with pytest.warns(HydraWarning, match="fitted before are dropped, fit them again"):
        finetune(hydra, labelled("timm"), None, replace(QUICK, steps=1))
    assert hydra.fitted == Fitted()


def test_batches_that_shuffle_count_on_with_the_members():
    """As of tensors, each member has an order of its own, whichever way it is trained; the first has the one given."""
    data = TensorBatches(*labelled("timm"), batch_size=8, shuffle=True, seed=5)
    recipe = replace(QUICK, steps=3)
    members = [member_of("timm") for _ in range(3)]
    finetune_members(members, data, None, recipe, seeds=[4, 4, 6])
    assert same(members[0], members[1])
    assert not same(members[0], members[2])
    for member, seed in ((members[0], 5), (members[2], 7)):
        alone = member_of("timm")
        own = TensorBatches(*labelled("timm"), batch_size=8, shuffle=True, seed=seed)
        finetune(alone, own, None, recipe, seed=seed - 1)
        assert same(member, alone)
    assert data.seed == 5
    assert counted_on(data, 2).digest != data.digest


def test_a_hydra_with_averaged_mlps_learns_and_keeps_its_trunk():
    model = plain_of("bert")
    full = HeadSet.all(model)
    heads = [HeadSet.of({"text": [range(4), {m}, {m, 3}]}, {"text": full.num_heads[0]}) for m in range(2)]
    hydra = fuse([prune(model, kept) for kept in heads])
    assert hydra.trunk == {"text": 1}
    before = {name: p.detach().clone() for name, p in hydra.named_parameters()}
    data = labelled("bert")
    recipe = replace(QUICK, steps=30, freeze_blocks=1, weight_decay=0.1, precision="bf16")
    history = finetune(hydra, data, data, recipe)
    assert history.losses[-1] < 0.8 * history.losses[0]
    for name, parameter in hydra.named_parameters():
        is_frozen = name.startswith(("towers.text.stem.", "towers.text.blocks.0."))
        assert torch.equal(parameter, before[name]) == is_frozen, name


def overfitting(keep, **changes):
    """Labels learnt by heart, and others to validate on: the validation gets worse."""
    model, train, val = plain_of("timm"), labelled("timm", seed=0), labelled("timm", rows=20, seed=1)
    recipe = replace(QUICK, steps=60, learning_rate=5e-3, evaluate_every=2, stop_on="nll", keep=keep, **changes)
    history = finetune(model, train, val, recipe)
    nll = F.cross_entropy(own_output(model, val[0])["logits"].double(), val[1])
    return history, float(nll)


def test_early_stopping_keeps_the_best_weights():
    history, nll = overfitting("best", patience=3)
    found = [evaluation.nll for evaluation in history.evaluations]
    assert history.stopped_early
    assert len(history.losses) < 60
    assert history.best.nll == min(found)
    assert found.index(min(found)) == len(found) - 1 - 3
    assert nll == pytest.approx(min(found), abs=1e-6)


def test_the_last_weights_stay_where_the_recipe_says_so():
    history, nll = overfitting("last")
    assert not history.stopped_early
    assert len(history.losses) == 60
    assert nll == pytest.approx(history.evaluations[-1].nll, abs=1e-6)
    assert nll > history.best.nll + 0.1


def test_improvements_below_min_delta_do_not_count():
    history, _ = overfitting("best", patience=2, min_delta=100.0)
    assert len(history.evaluations) == 3


def test_a_zeroed_head_starts_from_uniform_predictions():
    history = finetune(plain_of("timm"), labelled("timm"), None, replace(QUICK, steps=1, zero_head=True))
    assert history.losses[0] == pytest.approx(torch.tensor(float(CLASSES)).log().item(), abs=1e-6)


def test_dropout_is_the_recipes_inside_the_blocks_and_then_the_models_again():
    model, seen = plain_of("timm"), {}

    def look(_):
        seen.update({name: layer.p for name, layer in model.named_modules() if isinstance(layer, torch.nn.Dropout)})

    history = finetune(model, labelled("timm"), None, replace(QUICK, steps=1, dropout=0.1), progress=look)
    inside = [name for name in seen if name.startswith("blocks.") and "attn_drop" not in name]
    assert len(inside) == 3 * 3
    assert all(p == (0.1 if name in inside else 0.0) for name, p in seen.items())
    assert all(layer.p == 0.0 for layer in model.modules() if isinstance(layer, torch.nn.Dropout))
    plain = finetune(plain_of("timm"), labelled("timm"), None, replace(QUICK, steps=1))
    assert history.losses != plain.losses


@pytest.mark.parametrize("family", ["timm", "torchvision", "bert", "hf-vit"])
def test_plain_attention_has_the_same_gradients(family):
    inputs, labels = labelled(family)
    grads = []
    for context in (plain_attention(torch.device("cpu")), plain_attention(torch.device("cuda"))):
        member = member_of(family)
        with context:
            logits = Trainee(member)(inputs)[:, 0]
        F.cross_entropy(logits, labels).backward()
        grads.append({name: p.grad for name, p in member.named_parameters() if p.numel()})
    for name, ours in grads[0].items():
        torch.testing.assert_close(ours, grads[1][name], atol=1e-6, rtol=1e-4)


def test_plain_attention_is_plain_and_passes():
    q = torch.randn(2, 2, 5, 8, requires_grad=True)
    usual = F.scaled_dot_product_attention(q, q, q).grad_fn.name()
    with plain_attention(torch.device("cpu")):
        assert "ScaledDotProduct" not in F.scaled_dot_product_attention(q, q, q).grad_fn.name()
    assert F.scaled_dot_product_attention(q, q, q).grad_fn.name() == usual
    assert "ScaledDotProduct" in usual


def test_what_the_caller_froze_stays_frozen():
    model = plain_of("timm")
    model.blocks[1].requires_grad_(False)
    before = copy.deepcopy(model.blocks[1])
    finetune(model, labelled("timm"), None, replace(QUICK, steps=2))
    assert same(before, model.blocks[1])
    assert not any(p.requires_grad for p in model.blocks[1].parameters())


def test_every_step_is_told():
    steps = []
    data = labelled("timm", rows=20)
    history = finetune(plain_of("timm"), data, data, replace(QUICK, steps=None, epochs=2), progress=steps.append)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [step.epoch for step in steps] == [0, 0, 0, 1, 1, 1]
    assert [step.loss for step in steps] == history.losses
    assert [step.learning_rate for step in steps] == [rate_at(step, 6, history.recipe) for step in range(6)]
    assert [step.evaluation for step in steps if step.evaluation] == history.evaluations
    assert [found.step for found in history.evaluations] == [3, 6]


def test_a_layer_without_heads_trains():
    model = plain_of("bert")
    kept = HeadSet.of({"text": [[], [0, 1], []]}, {"text": HeadSet.all(model).num_heads[0]})
    history = finetune(prune(model, kept), labelled("bert"), None, replace(QUICK, steps=20))
    assert history.losses[-1] < history.losses[0]


def test_a_loader_is_data_too():
    inputs, labels = labelled("timm")
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
    first, second = plain_of("timm"), plain_of("timm")
    assert finetune(first, loader, loader, replace(QUICK, steps=5)).evaluations
    finetune(second, loader, loader, replace(QUICK, steps=5))
    assert same(first, second)


def test_the_best_rate_of_the_grid_is_chosen():
    model = plain_of("timm")
    before, data = copy.deepcopy(model), labelled("timm")
    recipe = replace(QUICK, learning_rate_grid=(1e-6, 5e-3, 1e-5), stop_on="nll")
    assert choose_learning_rate(model, data, data, recipe) == replace(recipe, learning_rate=5e-3)
    assert same(model, before)


@pytest.mark.parametrize(("keep", "chosen"), [("best", 5e-3), ("last", 1e-3)])
def test_a_rate_is_judged_by_the_weights_that_are_kept(keep, chosen, monkeypatch):
    """The higher rate is better on its way, the lower one at its end."""
    accuracies = {1e-3: (0.8, 0.85), 5e-3: (0.9, 0.4)}

    def trained(model, train, val, recipe, task, progress):
        found = [Evaluation(step + 1, 1.0, one) for step, one in enumerate(accuracies[recipe.learning_rate])]
        best = max(found, key=lambda one: one.accuracy)
        return History(recipe, 1, 2, [1.0, 1.0], found, best.step)

    monkeypatch.setattr("hydra_ensembles.members.rates.train_once", trained)
    recipe, data = replace(QUICK, learning_rate_grid=tuple(accuracies), keep=keep), labelled("timm")
    assert choose_learning_rate(plain_of("timm"), data, data, recipe).learning_rate == chosen


def test_batches_that_keep_their_order_are_trained_on_with_a_word():
    inputs, labels = labelled("timm")
    for shuffle in (False, True):
        batches, recipe = TensorBatches(inputs, labels, batch_size=8, shuffle=shuffle), replace(QUICK, steps=1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            finetune(plain_of("timm"), batches, batches, recipe)
        assert ["load them with shuffle=True" in str(one.message) for one in said] == [True] * (not shuffle)


def test_seeds_may_come_in_any_order(tmp_path):
    inputs, labels = labelled("timm")
    np.savez(tmp_path / "set.npz", images=(inputs.permute(0, 2, 3, 1).clamp(0, 1) * 255).byte(), labels=labels)
    batches = load_data(tmp_path / "set.npz", IMAGE, batch_size=8, shuffle=True)
    recipe, there, back = replace(QUICK, steps=2), [plain_of("timm") for _ in range(2)], plain_of("timm")
    finetune_members(there, batches, None, recipe, seeds=[3, 1])
    finetune_members([back], batches, None, recipe, seeds=[1])
    assert same(there[1], back)


def test_a_rate_that_diverges_is_not_chosen():
    data, recipe = labelled("timm"), replace(QUICK, optimiser="sgd", warm_up=0)
    steps, both = [], replace(recipe, learning_rate_grid=(1e30, 1e-3))
    assert choose_learning_rate(plain_of("timm"), data, data, both, progress=steps.append).learning_rate == 1e-3
    assert [step.step for step in steps].count(1) == 2, "both were tried"
    last_step = replace(both, steps=1)  # the loss is finite, what is left of the weights is not
    assert choose_learning_rate(plain_of("timm"), data, data, last_step).learning_rate == 1e-3
    with pytest.raises(FineTuningError, match=r"not finite at any learning rate of \[1e\+30, 1e\+29\]"):
        choose_learning_rate(plain_of("timm"), data, data, replace(recipe, learning_rate_grid=(1e30, 1e29)))


def half():
    return plain_of("timm").bfloat16()


def headless():
    model = plain_of("timm")
    model.reset_classifier(0)
    return model


def frozen():
    return plain_of("timm").requires_grad_(False)


@pytest.mark.parametrize(
    ("build", "family", "change", "said"),
    [
        (lambda: plain_of("open_clip"), "open_clip", {}, "no classifier to fine-tune"),
        (headless, "timm", {}, "no classifier"),
        (half, "timm", {}, "bfloat16"),
        (frozen, "timm", {}, "nothing to train"),
        (lambda: plain_of("timm"), "timm", {"freeze_blocks": 4}, "the model has 3 blocks"),
        (lambda: plain_of("timm"), "timm", {"train_last_blocks": 5}, "the model has 3 blocks"),
        (
            lambda: plain_of("timm"),
            "timm",
            {"learning_rate": 1e30, "optimiser": "sgd"},
            r"the loss is (nan|inf) at step \d+ \(learning rate",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(build, family, change, said):
    with pytest.raises(FineTuningError, match=said) as refused:
        finetune(build(), labelled(family), None, replace(QUICK, **change))
    assert "\n" not in str(refused.value)


def test_labels_must_be_there_and_fit():
    inputs, labels = labelled("timm")
    with pytest.raises(FineTuningError, match="needs labels"):
        finetune(plain_of("timm"), inputs, None, QUICK)
    with pytest.raises(FineTuningError, match=r"label 5 was found, but the model has 5 classes"):
        finetune(plain_of("timm"), (inputs, labels + (labels == labels.max())), None, QUICK)
    with pytest.raises(FineTuningError, match="label -1 was found"):
        finetune(plain_of("timm"), (inputs, labels - 1), None, QUICK)
    for wrong in (labels[:, None], labels + 0.2, F.one_hot(labels)):
        with pytest.raises(FineTuningError, match="labels are one whole number an input, found torch"):
            finetune(plain_of("timm"), (inputs, wrong), None, QUICK)
    finetune(plain_of("timm"), (inputs, labels.double()), None, replace(QUICK, steps=1))
    with pytest.raises(FineTuningError, match="there are"):
        finetune(plain_of("timm"), (inputs, labels), None, "no-such-recipe")


def test_the_papers_recipes_run():
    """Cut to two steps; what they freeze fits models of six blocks and of three."""
    for name, recipe in RECIPES.items():
        family = "bert" if "sst2" in name else "timm"
        if name == "cifar100":
            recipe = replace(recipe, train_last_blocks=2)
        recipe = replace(recipe, epochs=None, steps=2, batch_size=8)
        data = labelled(family)
        assert len(finetune(plain_of(family), data, data, recipe).losses) == 2


def test_weights_that_are_no_numbers_after_the_last_step_are_no_result():
    with pytest.raises(Diverged, match="after step 1; lower the learning rate"):
        finetune(member_of("timm"), labelled("timm"), None, replace(QUICK, steps=1, warm_up=0, learning_rate=1e38))


def test_a_validation_set_without_numbers_is_no_judge():
    inputs, labels = labelled("timm")
    with pytest.raises(Diverged, match="the loss on the validation set is nan at step"):
        finetune(member_of("timm"), (inputs, labels), (inputs * torch.nan, labels), replace(QUICK, steps=1))


def test_members_of_different_models_are_not_trained_together():
    with pytest.raises(FusionError, match="members 0 and 1 are of different architectures"):
        finetune_members([member_of("timm"), member_of("bert")], labelled("timm"), None, QUICK)
