"""On a GPU a hydra computes what it computes on CPU, by other paths; skipped where there is none."""

import copy

import pytest
import torch

from export.hydras import hydra_of
from families import BY_NAME, model_of
from hydra_ensembles import Hydra, circuit_ranking, taylor_ranking
from hydra_ensembles.data.batches import inputs_to
from hydra_ensembles.evaluation import contest, interleaved, sample_inputs
from hydra_ensembles.pipeline import read_recipe, run
from kitchen import Kitchen, stocked

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
GPU = torch.device("cuda")
FAMILIES = ("timm", "timm-dinov2", "bert")


@pytest.fixture(autouse=True)
def in_full_fp32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = before


def on_both(hydra, inputs):
    """Members' logits on CPU and on the GPU."""
    with torch.inference_mode():
        expected = hydra.members(inputs)
        found = copy.deepcopy(hydra).to(GPU).members(inputs_to(inputs, GPU))
    assert found.device.type == "cuda"
    return expected, found.cpu()


@pytest.mark.parametrize("mlp", ["average", "grouped"])
@pytest.mark.parametrize("is_ragged", [False, True], ids=["equal", "ragged"])
@pytest.mark.parametrize("name", FAMILIES)
def test_members_answer_as_on_cpu(name, is_ragged, mlp):
    expected, found = on_both(hydra_of(name, is_ragged, mlp=mlp), BY_NAME[name].inputs(5, 7, 0))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_bf16_and_autocast_stay_near_fp32(name):
    hydra, inputs = hydra_of(name, is_ragged=False), BY_NAME[name].inputs(5, 7, 0)
    with torch.inference_mode():
        expected = hydra(inputs).exp()
        on_gpu, given = copy.deepcopy(hydra).to(GPU), inputs_to(inputs, GPU)
        with torch.autocast("cuda", torch.bfloat16):
            under_autocast = on_gpu(given).exp()
        in_bf16 = given.bfloat16() if isinstance(given, torch.Tensor) else given
        whole = on_gpu.bfloat16()(in_bf16).exp()
    for found in (under_autocast, whole):
        torch.testing.assert_close(found.cpu().float(), expected.float(), atol=0.05, rtol=0)


def test_compiled_it_answers_the_same():
    hydra, images = hydra_of("timm", is_ragged=False).to(GPU), BY_NAME["timm"].inputs(5, 0, 0).to(GPU)
    with torch.inference_mode():
        expected = hydra.members(images)
        found = torch.compile(hydra.members)(images)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_what_is_stored_from_a_gpu_is_loaded_on_cpu(tmp_path):
    hydra = hydra_of("timm", is_ragged=True)
    images = BY_NAME["timm"].inputs(3, 0, 0)
    copy.deepcopy(hydra).to(GPU).save(tmp_path)
    assert torch.equal(Hydra.load(tmp_path).members(images), hydra.members(images))


def test_searches_choose_as_on_cpu():
    model, generator = model_of("timm").eval(), torch.Generator().manual_seed(0)
    known = (BY_NAME["timm"].inputs(24, 0, 0), torch.randint(0, 3, (24,), generator=generator))
    unknown, on_gpu = torch.rand(24, *known[0].shape[1:], generator=generator), copy.deepcopy(model).to(GPU)
    for search in ("plain", "fast", "lazy"):
        expected = circuit_ranking(model, known, unknown, "avg", remove=4, search=search)
        found = circuit_ranking(on_gpu, known, unknown, "avg", remove=4, search=search)
        assert found.removed == expected.removed
    expected, found = (taylor_ranking(one, known, 4, scope="global") for one in (model, on_gpu))
    assert found.removed == expected.removed


def test_a_recipe_runs_on_the_gpu(tmp_path, monkeypatch):
    place = tmp_path / "kitchen"
    place.mkdir()
    monkeypatch.chdir(stocked(place))
    done = run(read_recipe(Kitchen(place).recipe()), "out", device="cuda", progress=False)
    assert set(done.results["models"]) == {"base", "members", "hydra"}
    assert next(Hydra.load("out/hydra").parameters()).device.type == "cpu"


def test_a_contest_waits_for_the_gpu():
    model = copy.deepcopy(model_of("timm")).to(GPU)
    inputs = sample_inputs(model, 4)
    assert inputs.device.type == "cuda"
    runs = contest(model, inputs, keep=2, trunk=1).contestants
    with torch.inference_mode():
        *_, timings = interleaved(runs, rounds=3)
        long = torch.randn(4096, 4096, device=GPU)
        *_, slow = interleaved({"none": lambda: None, "products": lambda: [long @ long for _ in range(20)]}, rounds=3)
    assert set(timings) == {"single", "deep_ensembles", "members", "hydra", "bare"}
    assert slow["products"].median_ms > 10 * slow["none"].median_ms
