"""The models have the sizes that the lessons' arithmetic relies on."""

import pytest
import torch

from hw_utils.material.models import VGG11, LeNet5, SimpleCNN, SimpleMLP, TinyGPT


def n_parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("side", [28, 32])
def test_lenet5_scores_ten_classes_at_both_sizes(side):
    assert LeNet5()(torch.zeros(3, 1, side, side)).shape == (3, 10)


def test_lenet5_refuses_another_size():
    with pytest.raises(ValueError, match="28x28 or 32x32, got"):
        LeNet5()(torch.zeros(3, 1, 30, 30))


def test_lenet5_has_the_papers_shapes():
    assert n_parameters(LeNet5()) == 61_706


def test_lenets_scores_are_the_same_with_and_without_gradients():
    model, images = LeNet5(), torch.randn(7, 1, 28, 28)
    with_gradients = model(images)
    with torch.no_grad():
        assert torch.equal(model(images), with_gradients)


def test_vgg11_has_the_published_number_of_parameters():
    # 9,231,114 * 4 bytes = 36.9 MB, the gradient of the four-host measurements.
    assert n_parameters(VGG11()) == 9_231_114
    assert VGG11()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_vgg11_without_batch_norm_has_no_buffers():
    model = VGG11(batch_norm=False)
    assert n_parameters(model) == 9_231_114 - 2 * (64 + 128 + 256 + 256 + 4 * 512)
    assert not list(model.buffers())


def test_simple_cnn_flattens_to_2304():
    assert SimpleCNN().fc1.weight.shape == (128, 2304)
    assert SimpleCNN()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_simple_mlp_has_no_biases():
    model = SimpleMLP(2, 8, 3)
    assert [n for n, _ in model.named_parameters()] == ["lin1.weight", "lin2.weight"]
    x = torch.randn(5, 2)
    expected = torch.nn.functional.gelu(x @ model.lin1.weight.T) @ model.lin2.weight.T
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("model", [LeNet5, VGG11, SimpleCNN, SimpleMLP])
def test_a_seed_gives_the_same_weights(model):
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(model().state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(("n_layers", "n"), [(4, 210_304), (8, 410_240)])
def test_tiny_gpt_counts_its_tied_head_once(n_layers, n):
    assert n_parameters(TinyGPT(n_layers)) == n


def test_tiny_gpt_never_looks_ahead():
    torch.manual_seed(0)
    model = TinyGPT(n_layers=2).double()
    x = torch.randint(0, 96, (2, 64))
    changed = x.clone()
    changed[:, 40:] = torch.randint(0, 96, (2, 24))
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_tiny_gpt_starts_as_one_that_knows_nothing():
    torch.manual_seed(0)
    x = torch.randint(0, 96, (4, 65))
    assert TinyGPT().loss(x[:, :-1], x[:, 1:]).item() == pytest.approx(4.56, abs=0.1)  # log 96


def test_tiny_gpt_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="heads must divide width, got 3 heads"):
        TinyGPT(heads=3)
    with pytest.raises(ValueError, match="sees 64 characters at once, got 65"):
        TinyGPT()(torch.zeros(1, 65, dtype=torch.int64))
