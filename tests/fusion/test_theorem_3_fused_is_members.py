"""Theorems 3 and 4: a hydra is its members, and with averaged MLPs it is its members with averaged MLPs."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from families import BY_NAME, CASES, _timm, head_sets, model_of, perturbed
from hydra_ensembles import Backbone, HeadSet, fuse, load_model, prune, save_model
from hydra_ensembles.errors import HydraWarning
from hydra_ensembles.fusion import FusionError
from hydra_ensembles.heads import hydra_cost

names = pytest.mark.parametrize("name", [case.name for case in CASES])


def trained(name, keep, seed):
    """A member with every tensor moved, as after fine-tuning."""
    member = prune(model_of(name), keep)
    perturbed(member.model, seed)
    return member


def assert_is_members(hydra, members, inputs):
    with torch.no_grad():
        found = hydra.members(inputs)
        expected = torch.stack([member(inputs) for member in members], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@names
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@settings(max_examples=4)
@given(data=st.data(), batch=st.integers(1, 3), tokens=st.integers(1, 10), seed=st.integers(0, 1000))
def test_a_grouped_hydra_is_its_members(name, count, data, batch, tokens, seed):
    """Ragged, without heads, with any mask; equal numbers of heads half of the time."""
    if data.draw(st.booleans()):
        keeps = [data.draw(head_sets(name)) for _ in range(count)]
    else:
        keeps = [HeadSet.first(model_of(name), data.draw(st.integers(0, 4)))] * count
    members = [trained(name, keep, m) for m, keep in enumerate(keeps)]
    inputs = BY_NAME[name].inputs(batch, tokens, seed)
    for last_block in ("read", "full"):
        assert_is_members(fuse(members, mlp="grouped", last_block=last_block), members, inputs)


@names
@settings(max_examples=4)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_an_averaged_hydra_is_its_members_with_averaged_mlps(name, data, seed):
    members = [trained(name, data.draw(head_sets(name)), m) for m in range(3)]
    hydra = fuse(members)
    layers = zip(*(Backbone.of(member.model).blocks() for member in members), strict=True)
    with torch.no_grad():
        for blocks in layers:
            for layer in ("fc_in", "fc_gate", "fc_out"):
                own = [getattr(block.mlp, layer) for _, _, block in blocks]
                for parameters in zip(*(linear.parameters() for linear in own if linear is not None), strict=True):
                    mean = sum(parameters) / 3
                    for parameter in parameters:
                        parameter.copy_(mean)
    assert_is_members(hydra, members, BY_NAME[name].inputs(2, 6, seed))


@names
def test_a_change_of_any_single_tensor_is_carried(name):
    """Nothing that differs is silently dropped: one tensor of one member at a time."""
    keep = HeadSet.first(model_of(name), 3)
    one, other = prune(model_of(name), keep), prune(model_of(name), keep)
    inputs = BY_NAME[name].inputs(2, 6, 0)
    for parameter in other.model.parameters():
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) * 0.3)
        assert_is_members(fuse([one, other], mlp="grouped"), [one, other], inputs)
        with torch.no_grad():
            parameter.copy_(before)


@names
@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_are_those_of_the_members(name, ragged):
    """One step of gradient descent on the hydra is one step on each member."""
    full = len(HeadSet.all(model_of(name)))
    keeps = [HeadSet.sample(model_of(name), full // 2 + m, m) for m in range(3)]
    keeps = keeps if ragged else [HeadSet.first(model_of(name), 2)] * 3
    members = [trained(name, keep, m) for m, keep in enumerate(keeps)]
    hydra = fuse(members, mlp="grouped")
    inputs, labels = BY_NAME[name].inputs(3, 6, 0), torch.arange(3)

    def step(module, loss):
        loss.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.sub_(0.1 * parameter.grad)

    cross_entropy = torch.nn.functional.cross_entropy
    step(hydra, sum(cross_entropy(logits, labels) for logits in hydra.members(inputs).unbind(1)))
    for member in members:
        step(member, cross_entropy(member(inputs), labels))
    again = fuse(members, mlp="grouped").state_dict()
    torch.testing.assert_close(hydra.state_dict(), again, rtol=1e-4, atol=1e-5)


def share(name, member, layers):
    """Put the stem and the first blocks of the unpruned, unmoved model back into a member."""
    ours, theirs = Backbone.of(member.model), Backbone.of(model_of(name))
    with torch.no_grad():
        for tower in ours.towers:
            pairs = [(ours.towers[tower].stem, theirs.towers[tower].stem)]
            pairs += list(zip(ours.towers[tower].blocks, theirs.towers[tower].blocks, strict=True))[:layers]
            for mine, other in pairs:
                for parameter, source in zip(mine.parameters(), other.parameters(), strict=True):
                    parameter.copy_(source)


@names
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_a_trunk_is_found_and_changes_nothing(name, layers):
    full = HeadSet.all(model_of(name))
    heads = {tower: [range(4)] * layers + [[0, 2], [1], [1, 2, 3]][layers:] for tower in full.towers}
    keep = HeadSet.of(heads, dict(zip(full.towers, full.num_heads, strict=True)))
    members = [trained(name, keep, m) for m in range(3)]
    for member in members:
        share(name, member, layers)
    for mlp in ("grouped", "average"):
        hydra = fuse(members, mlp=mlp)
        assert set(hydra.trunk.values()) == {layers}
        if mlp == "grouped" or layers == 3:
            assert_is_members(hydra, members, BY_NAME[name].inputs(2, 6, 0))
        predicted = hydra_cost(Backbone.of(model_of(name)), [keep] * 3, trunk=layers)
        if mlp == "average":
            assert sum(p.numel() for p in hydra.parameters()) == predicted.params


@names
def test_untrained_members_share_what_they_have_in_common(name):
    keeps = [HeadSet.sample(model_of(name), 5, m) for m in range(3)]
    members = [prune(model_of(name), keep) for keep in keeps]
    hydra = fuse(members)
    assert_is_members(hydra, members, BY_NAME[name].inputs(2, 6, 0))
    trained_params = hydra_cost(Backbone.of(model_of(name)), keeps).params
    assert sum(p.numel() for p in hydra.parameters()) < trained_params


def test_table_7_on_a_real_fused_module():
    """ViT-B/16, 8 heads, 3 members that share the stem: parameters and multiply-adds as `inspect` predicts them."""
    import timm
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from hydra_ensembles.evaluation import contest

    image = torch.zeros(1, 3, 224, 224)
    model = timm.create_model("vit_base_patch16_224").eval()
    for last_block, mult_adds in (("full", 46_167_570_432), ("read", 42_812_000_256)):
        hydra = contest(model, image, keep=8, members=3, last_block=last_block).hydra
        assert sum(p.numel() for p in hydra.parameters()) == 116_540_088
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            hydra(image)
        assert counter.get_total_flops() // 2 == mult_adds


def test_a_hydra_is_not_tied_to_the_models_it_came_from():
    members = [trained("timm", HeadSet.first(model_of("timm"), 2), m) for m in range(2)]
    hydra = fuse(members)
    before = copy.deepcopy(hydra.state_dict())
    with torch.no_grad():
        for member in members:
            for parameter in member.parameters():
                parameter.zero_()
    assert all(torch.equal(value, before[key]) for key, value in hydra.state_dict().items())


def test_whole_models_fuse_too():
    models = [perturbed(copy.deepcopy(model_of("bert")), seed).eval() for seed in range(2)]
    hydra, inputs = fuse(models, mlp="grouped"), BY_NAME["bert"].inputs(2, 6, 0)
    with torch.no_grad():
        expected = torch.stack([model(**inputs).logits for model in models], dim=1)
        torch.testing.assert_close(hydra.members(inputs), expected, rtol=1e-5, atol=1e-5)


def test_averaging_the_mlps_of_strangers_is_warned_of():
    """Two networks that were never one; keeping each its own is no such thing, nor is training from one network."""
    import timm

    strangers = []
    for seed in range(2):
        torch.manual_seed(seed)
        strangers.append(timm.create_model("test_vit").eval())
    with pytest.warns(UserWarning, match=r"members 0 and 1 have little in common \(cosine -?0\.0\d\).*mlp='grouped'"):
        fuse(strangers)
    tuned = copy.deepcopy(strangers[0])
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.3 * parameter.abs().mean() * torch.randn_like(parameter))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuse(strangers, mlp="grouped")
        fuse([strangers[0], tuned])


def test_whole_models_say_what_their_classes_and_inputs_are(tmp_path):
    preprocess = {"kind": "image", "size": 16, "interpolation": "bilinear", "mean": [0.1] * 3, "std": [0.2] * 3}

    def loaded(classes, **other):
        save_model(model_of("timm"), tmp_path / "model", classes and list(classes), {**preprocess, **other})
        return load_model(str(tmp_path / "model"))

    hydra = fuse([loaded("abcde"), loaded("abcde"), loaded(None)])
    assert (hydra.classes, hydra.preprocess) == (list("abcde"), preprocess)
    model = loaded("abcde")
    other = prune(loaded("edcba"), HeadSet.all(model))
    for members in ([model, loaded("edcba")], [model, other], [other, model]):
        with pytest.raises(FusionError, match="members name different classes"):
            fuse(members)
    with pytest.raises(FusionError, match="members name different preprocess"):
        fuse([model, loaded("abcde", size=32)])


def _rounded(name):
    """A model after a cast to bf16 and back."""
    return copy.deepcopy(model_of(name)).bfloat16().float()


def test_members_that_were_cast_alike_are_fused():
    model = _rounded("timm-eva02-tiny")
    members = [prune(model, HeadSet.sample(model, keep=8, seed=seed)) for seed in (0, 1)]
    x = BY_NAME["timm-eva02-tiny"].inputs(2, 0, 0)
    with torch.no_grad():
        found = fuse((member for member in members), mlp="grouped").members(x)
        expected = torch.stack([member(x) for member in members], dim=1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: fuse([]), "at least one member"),
        (lambda: fuse([model_of("timm")], mlp="mean"), "mlp='mean' is not known; it is 'average' or 'grouped'"),
        (lambda: fuse([model_of("timm")], last_block="cls"), "last_block='cls' is not known"),
        (lambda: fuse([model_of("timm"), model_of("timm-mean")]), "members 0 and 1 are of different architectures"),
        (lambda: fuse([model_of("bert"), model_of("timm")]), "members 0 and 1 are of different architectures"),
        (lambda: fuse([_timm(proj_bias=False), _timm()]), "members 0 and 1 are of different architectures"),
        (lambda: fuse([_timm(), _timm(qkv_bias=False)]), "members 0 and 1 are of different architectures"),
        (lambda: fuse([_timm(num_classes=5), _timm(num_classes=7)]), r"classifier.weight: \[5, 32\], \[7, 32\]"),
        (lambda: fuse([_timm(depth=2), _timm(depth=3)]), r"towers.vision.blocks: 2, 3"),
        (lambda: fuse([_timm(), _timm().bfloat16()]), r"different dtypes \(.*: torch.float32, torch.bfloat16\)"),
        (lambda: fuse([_rounded("timm-eva02-tiny"), model_of("timm-eva02-tiny")]), "different tables 'rotary'"),
        (lambda: fuse(model_of("timm")), r"a list of members, found one: fuse\(\[member\]\)"),
    ],
)
def test_what_cannot_be_fused_is_refused(wrong, message):
    with pytest.raises(FusionError, match=message):
        wrong()


@pytest.mark.parametrize("name", ["timm", "bert", "open_clip", "timm-qk-norm"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_hydra_compiles_without_graph_breaks(name, ragged):
    keeps = [HeadSet.first(model_of(name), 2 + (ragged and m)) for m in range(2)]
    hydra = fuse([trained(name, keep, m) for m, keep in enumerate(keeps)])
    inputs = BY_NAME[name].inputs(2, 6, 0)
    torch._dynamo.reset()
    compiled = torch.compile(hydra, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(inputs), hydra(inputs), rtol=1e-5, atol=1e-5)


@names
def test_in_bf16_the_network_is_close_and_its_scores_are_fp32(name):
    members = [trained(name, HeadSet.first(model_of(name), 2), m) for m in range(2)]
    hydra, inputs = fuse(members), BY_NAME[name].inputs(2, 6, 0)
    with torch.no_grad():
        expected = hydra.predict(inputs)
        found = hydra.to(torch.bfloat16).predict(inputs)
    assert {p.dtype for p in hydra.parameters()} == {torch.bfloat16}
    assert found.probs.dtype == found.entropy.dtype == found.epistemic.dtype == torch.float32
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=0.1)


@names
@pytest.mark.parametrize("ragged", [False, True])
def test_a_batch_without_rows_has_answers_without_rows(name, ragged):
    hydra = fuse([prune(model_of(name), HeadSet.first(model_of(name), 2 + (ragged and m))) for m in range(2)])
    inputs = BY_NAME[name].inputs(1, 6, 0)
    if BY_NAME[name].modality == "both":  # texts beside images are classes, and some there must be
        none = {**inputs, "vision": inputs["vision"][:0]}
    else:
        none = {key: one[:0] for key, one in inputs.items()} if isinstance(inputs, dict) else inputs[:0]
    with torch.no_grad():
        found, one = hydra.predict(none), hydra.predict(inputs)
    assert found.probs.shape == (0, *one.probs.shape[1:])
    assert found.entropy.shape == found.label.shape == (0,)


def test_members_that_are_one_and_the_same_are_told():
    model = model_of("timm")
    one, other = (prune(model, HeadSet.sample(model, 5, seed)) for seed in (0, 1))
    with pytest.warns(HydraWarning, match="members 0 and 2 are the same to the bit"):
        fuse([one, other, one])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuse([one, other])
