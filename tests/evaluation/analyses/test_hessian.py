"""Hutchinson's diagonal: against Hessians in closed form and by autograd, and how its error shrinks."""

import pytest
import torch
import torch.nn.functional as F

from hydra_ensembles.evaluation.analyses import AnalysisError, hessian, hessian_diagonal

N = 12


def everything(*weights):
    return [torch.ones_like(weight, dtype=torch.bool) for weight in weights]


def quadratic(seed=0):
    """L = w.A w / 2 + b.w with a symmetric A, which is its Hessian."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(N, N, generator=generator, dtype=torch.float64)
    A, b = A + A.T, torch.randn(N, generator=generator, dtype=torch.float64)
    weight = torch.randn(N, generator=generator, dtype=torch.float64, requires_grad=True)
    return A, weight, lambda: [weight @ A @ weight / 2, b @ weight]


def test_of_a_quadratic_it_is_the_diagonal_of_its_matrix_within_the_error_it_states():
    A, weight, losses = quadratic()
    found = hessian_diagonal(losses, [weight], everything(weight), probes=4000)
    off = A - torch.diag(A.diagonal())
    # In closed form: the variance of one probe is the sum of squares of the row off the diagonal.
    expected_error = (off.square().sum(dim=1) / 4000).sqrt()
    assert torch.allclose(found.error_N, expected_error, rtol=0.1)
    assert ((found.mean_N - A.diagonal()).abs() < 4 * found.error_N).all()
    assert abs(found.average - A.diagonal().mean().item()) < 4 * found.average_error
    # Of the average, sum of off-diagonal A_ij z_i z_j over N: variance 2 * sum of squares.
    assert found.average_error == pytest.approx((2 * off.triu().square().sum() * 2 / 4000).sqrt().item() / N, rel=0.1)


def test_of_a_diagonal_hessian_two_probes_are_exact():
    weight = torch.randn(N, dtype=torch.float64, requires_grad=True)
    found = hessian_diagonal(lambda: [(weight**3).sum()], [weight], everything(weight), probes=2)
    torch.testing.assert_close(found.mean_N, 6 * weight.detach())
    assert found.error_N.max() < 1e-12


def test_the_error_shrinks_with_the_root_of_the_probes():
    A, weight, losses = quadratic()
    few, many = (hessian_diagonal(losses, [weight], everything(weight), probes) for probes in (64, 4096))
    assert few.average_error / many.average_error == pytest.approx(8, rel=0.3)
    assert (few.error_N / many.error_N).mean().item() == pytest.approx(8, rel=0.2)
    misses = [(found.mean_N - A.diagonal()).norm().item() for found in (few, many)]
    assert misses[1] < misses[0] / 3


def linear_softmax():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (9,), generator=generator)
    W, b = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (3,)))
    return x, y, W, b


def test_of_a_linear_softmax_model_it_is_that_of_autograd_and_of_the_closed_form():
    x, y, W, b = linear_softmax()
    whole = torch.autograd.functional.hessian(lambda W, b: F.cross_entropy(x @ W.T + b, y), (W, b))
    p = (x @ W.T + b).softmax(-1)
    closed = torch.einsum("nc,nd->cd", p * (1 - p), x.square()) / 9  # the diagonal of (diag(p) - pp^T) ⊗ xx^T
    torch.testing.assert_close(whole[0][0].reshape(12, 12).diagonal(), closed.flatten())
    W.requires_grad_()
    b.requires_grad_()

    def losses():  # in parts of unequal size: their sum is the mean over all rows
        for rows in (slice(0, 4), slice(4, 9)):
            yield F.cross_entropy(x[rows] @ W.T + b, y[rows], reduction="sum") / 9

    found = hessian_diagonal(losses, [W, b], everything(W, b), probes=3000)
    expected = torch.cat([whole[0][0].reshape(12, 12).diagonal(), whole[1][1].diagonal()])
    assert ((found.mean_N - expected).abs() < 4.5 * found.error_N).all()
    assert (found.error_N < 0.1 * expected.max()).all()


def test_products_are_those_of_the_hessian_of_the_chosen_numbers():
    x, y, W, b = linear_softmax()
    whole = torch.autograd.functional.hessian(lambda W: F.cross_entropy(x @ W.T + b, y), W).reshape(12, 12)
    W.requires_grad_()
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[1, :2] = mask[2, 3] = True
    vectors = torch.randn(5, 3, dtype=torch.float64)
    found = hessian.hessian_products(lambda: [F.cross_entropy(x @ W.T + b, y)], [W], [mask], vectors)
    chosen = mask.flatten().nonzero()[:, 0]
    torch.testing.assert_close(found, vectors @ whole[chosen][:, chosen])


def test_how_many_probes_run_side_by_side_does_not_matter(monkeypatch):
    _, weight, losses = quadratic()
    together = hessian_diagonal(losses, [weight], everything(weight), probes=7)
    monkeypatch.setattr(hessian, "HOLD_NUMBERS", 2 * N)
    torch.testing.assert_close(hessian_diagonal(losses, [weight], everything(weight), probes=7).mean_N, together.mean_N)


def test_a_linear_loss_is_not_curved_and_one_probe_has_no_error():
    weight = torch.randn(N, requires_grad=True)
    found = hessian_diagonal(lambda: [weight.sum()], [weight], everything(weight), probes=3)
    assert found.average == found.average_error == 0
    with pytest.raises(AnalysisError, match="at least 2 probes, found 1"):
        hessian_diagonal(lambda: [weight.sum()], [weight], everything(weight), probes=1)
