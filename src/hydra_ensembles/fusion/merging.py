"""`fuse`: the parts of M members merged into the parts of one network.

A part that is the same in all members, to the bit, is kept once and run once. Every other is each member's own, but for
the weights of MLPs under `mlp="average"` (the paper, section 4.2). Nothing that differs is dropped.
"""

import warnings
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Origin, Tower, UnsupportedBackbone, origin_of
from hydra_ensembles.backbones.attention import Attention
from hydra_ensembles.backbones.parts import FeedForward, Norm, Part, Scale, named_tensors, rebuild, spec_of
from hydra_ensembles.backbones.readouts import LatentPool, Projection
from hydra_ensembles.backbones.stems import PatchStem, TokenStem
from hydra_ensembles.backbones.zero_shot import Prompted, ZeroShotBackbone, class_embeddings
from hydra_ensembles.errors import HydraError, HydraWarning
from hydra_ensembles.fusion.attention import FusedAttention
from hydra_ensembles.fusion.grouped import MemberLinear, MemberNorm, MemberPools, MemberScale, MemberStems
from hydra_ensembles.fusion.hydra import FusedClasses, FusedContrast, Hydra, HydraTower
from hydra_ensembles.heads import HeadSet, Member

RELATED = 0.3
"""Below this cosine of two members' MLPs averaging is warned of; trained from one network it is near 1, else near 0."""


class FusionError(HydraError):
    """Members that cannot become one network."""


def fuse(members: Sequence[nn.Module], mlp: str = "average", last_block: str = "read") -> Hydra:
    """Fuse members into one network.

    Args:
        members: of one architecture; pruned members or whole models, with any heads each.
        mlp: `"average"` merges the MLPs of all members into one (the paper); `"grouped"` keeps each member's own,
            and is then exactly the members.
        last_block: `"read"` computes in the last block only what the readout reads; `"full"` everything. The result
            is the same.
    """
    if isinstance(members, nn.Module):
        raise FusionError("fuse takes a list of members, found one: fuse([member])")
    members = list(members)
    if not members:
        raise FusionError("a hydra needs at least one member")
    if mlp not in ("average", "grouped"):
        raise FusionError(f"mlp={mlp!r} is not known; it is 'average' or 'grouped'")
    if last_block not in ("read", "full"):
        raise FusionError(f"last_block={last_block!r} is not known; it is 'read' or 'full'")
    backbones = [_backbone(member) for member in members]
    check_alike(backbones)
    classes, preprocess = _agreed(members, "classes"), _agreed(members, "preprocess")
    count = backbones[0].num_classes
    if classes is not None and count not in (None, len(classes)):
        raise FusionError(f"members have {count} classes, but {len(classes)} names for them; name as many as there are")
    with torch.no_grad():
        _warn_of_twins(backbones)
        if mlp == "average":
            _warn_of_strangers(backbones)
        towers = {name: _tower([b.towers[name] for b in backbones], mlp) for name in backbones[0].towers}
        contrast: FusedContrast | FusedClasses | None = _contrast(backbones)
        if isinstance(backbones[0], ZeroShotBackbone):
            contrast = _classes(towers.pop("text"), contrast, backbones)
        hydra = Hydra(towers, contrast, len(members), mlp, last_block)
    heads = [member.heads if isinstance(member, Member) else HeadSet.all(member) for member in members]
    hydra.about(heads, classes, preprocess, {})
    return hydra.eval()


def _tower(towers: list[Tower], mlp: str) -> HydraTower:
    stems: list[Any] = [tower.stem for tower in towers]
    stem = merge([stem.stem if isinstance(stem, Prompted) else stem for stem in stems], mlp)
    layers = list(zip(*(tower.blocks for tower in towers), strict=True))
    trunk = 0
    if not isinstance(stem, MemberStems):
        while trunk < len(layers) and _identical(layers[trunk]):
            trunk += 1
    blocks = [merge(layer, mlp) for layer in layers]
    readout = merge([tower.readout for tower in towers], mlp)
    return HydraTower(len(towers), trunk, stem, blocks, readout)


def merge(parts: Sequence[nn.Module], mlp: str) -> nn.Module:
    """One part that does what each member's part does to that member's rows."""
    if _identical(parts):
        return _copy(parts[0])  # type: ignore[no-any-return]
    first = parts[0]
    if isinstance(first, Attention):
        norms = [_merge_child(parts, name, mlp) for name in ("q_norm", "k_norm")]
        return FusedAttention(list(parts), *norms)  # type: ignore[arg-type]
    if isinstance(first, Norm):
        return MemberNorm(list(parts))  # type: ignore[arg-type]
    if isinstance(first, Scale):
        return MemberScale(torch.stack([_tensor(part, "weight") for part in parts]))
    if isinstance(first, nn.Linear | Projection):
        transposed = isinstance(first, Projection) and first.transposed
        weights = [_tensor(part, "weight") for part in parts]
        stacked = torch.stack([weight if transposed else weight.T for weight in weights]).contiguous()
        return MemberLinear(stacked, None if first.bias is None else torch.stack([_tensor(p, "bias") for p in parts]))
    if isinstance(first, PatchStem | TokenStem):
        _check_tables(parts)
        return MemberStems([_copy(part) for part in parts])
    if isinstance(first, LatentPool):
        return MemberPools([_copy(part) for part in parts])
    assert isinstance(first, Part)
    average = isinstance(first, FeedForward) and mlp == "average"
    frame = rebuild({**first.spec(), "tensors": {}, "parts": {}})
    for name, child in first.named_children():
        if average and isinstance(child, nn.Linear):
            frame.add_module(name, _averaged([getattr(part, name) for part in parts]))
        else:
            frame.add_module(name, _merge_child(parts, name, mlp))
    return frame  # type: ignore[no-any-return]


def _check_tables(stems: Sequence[Any]) -> None:
    """What all members compute from the same settings is kept once; rounded in one of them, it is not the same."""
    for name in stems[0].tables:
        for m, stem in enumerate(stems):
            if not torch.equal(_tensor(stem, name), _tensor(stems[0], name)):
                raise FusionError(
                    f"members 0 and {m} have different tables '{name}', as after a cast to another dtype and back; "
                    "load them anew, or cast all of them alike"
                )


def _merge_child(parts: Sequence[nn.Module], name: str, mlp: str) -> nn.Module | None:
    children = [getattr(part, name) for part in parts]
    return None if children[0] is None else merge(children, mlp)


def _averaged(layers: list[nn.Linear]) -> nn.Linear:
    """The paper's merged MLP layer: weights and biases averaged over members."""
    layer = _copy(layers[0])
    for name, parameter in layer.named_parameters():
        mean = torch.stack([_tensor(other, name).double() for other in layers]).mean(dim=0)
        parameter.copy_(mean.to(parameter.dtype))
    return layer  # type: ignore[no-any-return]


def _warn_of_twins(backbones: list[Backbone]) -> None:
    """Say so where two members are one and the same."""
    for m, other in combinations(range(len(backbones)), 2):
        if _identical([backbones[m], backbones[other]]):
            warnings.warn(
                f"members {m} and {other} are the same to the bit and will never disagree; prune them to other "
                "heads, or train each with a seed of its own",
                HydraWarning,
                stacklevel=3,
            )
            return


def _warn_of_strangers(backbones: list[Backbone]) -> None:
    """Say so where averaging would mix the MLPs of networks that were not trained from one start."""
    found = [[part for part in backbone.modules() if isinstance(part, FeedForward)] for backbone in backbones]
    layers = [[layer for part in parts for layer in (part.fc_in, part.fc_out)] for parts in found]
    for m, others in enumerate(layers[1:], start=1):
        pairs = zip(layers[0], others, strict=True)
        cosine = fmean(F.cosine_similarity(_direction(a), _direction(b), dim=0).item() for a, b in pairs)
        if cosine < RELATED:
            warnings.warn(
                f"the MLPs of members 0 and {m} have little in common (cosine {cosine:.2f}), as if they had not been "
                "trained from one network; their average is neither: keep each its own with mlp='grouped'",
                HydraWarning,
                stacklevel=3,
            )
            return


def _direction(layer: nn.Linear) -> Tensor:
    return layer.weight.detach().flatten().float()


def _contrast(backbones: list[Backbone]) -> FusedContrast | None:
    contrasts = [backbone.contrast for backbone in backbones]
    if contrasts[0] is None:
        return None
    scales = torch.stack([_tensor(c, "logit_scale").reshape(()) for c in contrasts if c is not None])
    biases = None
    if contrasts[0].logit_bias is not None:
        biases = torch.stack([_tensor(c, "logit_bias").reshape(()) for c in contrasts if c is not None])
    return FusedContrast(scales, biases)


def _classes(text: HydraTower, contrast: Any, backbones: Sequence[Any]) -> FusedClasses:
    """Each member's class embeddings: the fused text tower runs here, and never again."""
    prompts = [backbone.towers["text"].stem.prompts for backbone in backbones]
    if all(torch.equal(own, prompts[0]) for own in prompts):
        features = text(prompts[0].flatten(0, 1), "read")
    else:  # a fused tower reads the same texts for all members
        features = torch.stack([text(own.flatten(0, 1), "read")[m] for m, own in enumerate(prompts)])
    return FusedClasses(class_embeddings(features, prompts[0].shape[1]), contrast)


def _backbone(member: nn.Module) -> Backbone:
    if isinstance(member, Backbone):
        return member
    return member.backbone if isinstance(member, Member) else Backbone.of(member)


def _identical(parts: Sequence[nn.Module]) -> bool:
    """The same kind, settings and numbers, to the bit."""
    first, *others = parts
    spec, tensors = spec_of(first), dict(named_tensors(first))

    def same(name: str, tensor: Tensor) -> bool:
        return tensor.dtype == tensors[name].dtype and torch.equal(tensor, tensors[name])

    return all(spec_of(o) == spec and all(same(name, t) for name, t in named_tensors(o)) for o in others)


def _copy(part: nn.Module) -> Any:
    copy = rebuild(spec_of(part))
    copy.load_state_dict({name: tensor.detach().clone() for name, tensor in named_tensors(part)}, assign=True)
    return copy


def _tensor(part: Any, name: str) -> Tensor:
    tensor = getattr(part, name)
    assert isinstance(tensor, Tensor)
    return tensor.detach()


def check_alike(backbones: Sequence[Backbone]) -> None:
    """Members may differ in numbers and heads, in nothing else."""
    shapes = [_without_heads(backbone.spec()) for backbone in backbones]
    for m, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise FusionError(
                f"members 0 and {m} are of different architectures ({_difference(shapes[0], shape)}); "
                "a hydra's members come from one backbone"
            )
    dtypes = [{name: tensor.dtype for name, tensor in named_tensors(backbone)} for backbone in backbones]
    for m, of in enumerate(dtypes):
        other = next((name for name in of if name in dtypes[0] and of[name] != dtypes[0][name]), None)
        if other is not None:
            raise FusionError(
                f"members 0 and {m} are of different dtypes ({other}: {dtypes[0][other]}, {of[other]}); bring them to "
                "one, as with member.to(torch.float32)"
            )


def _without_heads(spec: Any) -> Any:
    """A spec, with everything left out that depends on how many heads an attention has."""
    if isinstance(spec, list):
        return [_without_heads(child) for child in spec]
    if not isinstance(spec, dict):
        return spec
    if spec.get("part") == "Attention":
        norms = {name: child for name, child in spec["parts"].items() if name.endswith("_norm")}
        others = {name: _kind(child) for name, child in spec["parts"].items() if name not in norms}
        kept = {key: spec[key] for key in ("head_dim", "scale", "interleaved", "absent")}
        return {**kept, "parts": others, "norms": norms}
    return {key: _without_heads(child) for key, child in spec.items()}


def _kind(spec: Any) -> Any:
    """What a spec says without sizes: which parts and tensors there are, biases among them."""
    parts = {name: _kind(child) for name, child in spec.get("parts", {}).items()}
    return {"part": spec["part"], "tensors": sorted(spec["tensors"]), "parts": parts}


def _difference(one: Any, other: Any, place: tuple[str, ...] = ()) -> str:
    """Where two specs first differ, and how: `towers.vision.readout.classifier.weight: [10, 192], [5, 192]`."""
    inside: list[tuple[str, Any, Any]] = []
    if isinstance(one, dict) and isinstance(other, dict):
        inside = [(key, one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, list) and isinstance(other, list) and one and isinstance(one[0], dict):
        if len(one) != len(other):
            return f"{'.'.join(place)}: {len(one)}, {len(other)}"
        inside = [(str(key), *pair) for key, pair in enumerate(zip(one, other, strict=True))]
    for key, first, second in inside:
        if first != second:
            return _difference(first, second, place if key in ("parts", "tensors") else (*place, key))
    kinds = [said.get("part", "other") if isinstance(said, dict) else said for said in (one, other)]
    return f"{'.'.join(place)}: {kinds[0]}, {kinds[1]}"


def _agreed(members: Sequence[nn.Module], field: str) -> Any:
    """What all members that say it say alike."""
    said = [value for member in members if (value := getattr(_origin(member), field, None)) is not None]
    if any(value != said[0] for value in said):
        raise FusionError(
            f"members name different {field}; a hydra's members predict the same classes of the same inputs"
        )
    return said[0] if said else None


def _origin(member: nn.Module) -> Origin | None:
    if isinstance(member, Member):
        return member.origin
    try:
        return origin_of(member)
    except UnsupportedBackbone:  # slices of a packed network, or a model that its library could not build again
        return None
