"""A method that is interrupted and fitted again."""

import pytest

from members.training import same


class Interrupted(Exception):
    pass


def interrupt(found):
    if found.step == 3:
        raise Interrupted


def resumed_and_undisturbed(build, data, recipe, scratch):
    """A method interrupted at its third step and fitted again, and one that was left alone; they must be alike."""
    with pytest.raises(Interrupted):
        build().fit(data, data, recipe, checkpoint=scratch, checkpoint_every_s=0, progress=interrupt)
    assert (scratch / "training.pt").exists()
    again, alone, seen = build(), build(), []
    again.fit(data, data, recipe, checkpoint=scratch, progress=lambda found: seen.append(found.step))
    alone.fit(data, data, recipe)
    assert seen[0] == 4
    assert same(again, alone)
    assert not same(again, build())
    return again, alone
