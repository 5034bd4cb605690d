"""The real chain, reduced: from MiniLM's weights to a hydra that is saved, reloaded and better than chance."""

import pytest


@pytest.mark.real
@pytest.mark.slow
def test_minilm_becomes_a_hydra(real_data, tmp_path):
    import chain

    sizes = {"train": 1600, "search": 32, "tune": 320, "test": 200, "ood_test": 64}
    found = chain.run(tmp_path, sizes)
    assert found["reloaded_to_the_bit"]
    assert found["figures_percent"]["base"]["accuracy"] > 65
    assert found["figures_percent"]["hydra"]["accuracy"] > 60
    again = chain.run(tmp_path, sizes)  # everything is on disk: nothing is trained or searched again
    assert again["figures_percent"] == found["figures_percent"]
    assert again["seconds"]["members"] < found["seconds"]["members"]
