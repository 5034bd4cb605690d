"""`hydra-ens fuse`: stored members into one stored hydra."""

from pathlib import Path
from typing import Annotated

import typer


def fuse(
    members: Annotated[list[Path], typer.Argument(metavar="MEMBER...", help="Directories written by Member.save.")],
    out: Annotated[Path, typer.Option(help="Where the hydra is written.")],
    mlp: Annotated[
        str, typer.Option(help="'average': one MLP for all members (the paper); 'grouped': each keeps its own.")
    ] = "average",
    last_block: Annotated[
        str, typer.Option(help="'read': compute only what the readout reads; 'full': every token.")
    ] = "read",
) -> None:
    """Fuse members into one network that predicts with uncertainty.

    Example:  hydra-ens fuse runs/member-0 runs/member-1 runs/member-2 --out runs/hydra
    """
    from rich.console import Console
    from rich.progress import track

    from hydra_ensembles.fusion import fuse as fuse_members
    from hydra_ensembles.heads import Member
    from hydra_ensembles.heads.description import millions
    from hydra_ensembles.optional import versions
    from hydra_ensembles.store import tensors_digest

    console, aside = Console(), Console(stderr=True)
    loaded = [Member.load(path) for path in track(members, "loading members", console=aside, transient=True)]
    with aside.status("fusing"):
        hydra = fuse_members(loaded, mlp=mlp, last_block=last_block)
        digests = [tensors_digest(member.model.state_dict().items()) for member in loaded]
        hydra.provenance = {"members": digests, "mlp": mlp, "versions": versions()}
        hydra.save(out)
    if len(members) == 1:
        told = "a hydra of one member has nobody to disagree with; its epistemic uncertainty is 0"
        aside.print(told, style="yellow", highlight=False, soft_wrap=True)
    apart, together = (sum(p.numel() for m in parts for p in m.parameters()) for parts in (loaded, [hydra]))
    trunk = ", ".join(f"{blocks} of {len(hydra.towers[name].blocks)}" for name, blocks in hydra.trunk.items())  # type: ignore[arg-type]
    console.print(
        f"wrote {out}  ({hydra.num_members} members, trunk {trunk} blocks, mlp={mlp}, "
        f"{millions(together)} parameters; the members apart have {millions(apart)})",
        highlight=False,
        soft_wrap=True,
    )
