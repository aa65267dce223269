"""The perceptron of the published protocols."""

import pytest
import torch
from torch import nn

from tasks.mlp import MLPConfig, MLPForImageClassification, mlp
from tests.refusals import refused
from tests.tasks.test_continual import data, new_model


def test_weights_and_biases_begin_as_asked_for_and_else_as_torch_begins_them() -> None:
    torch.manual_seed(0)
    model = MLPForImageClassification(MLPConfig(400, [300], 10, initial_deviation=0.1, initial_bias=0.1))
    for layer in (*model.layers, model.head):
        assert layer.weight.abs().max() <= 0.2
        assert layer.weight.std().item() == pytest.approx(0.1 * 0.8796, rel=0.05)  # cut at two deviations
        assert (layer.bias == 0.1).all()
    layer, bound = MLPForImageClassification(MLPConfig(400, [300], 10)).layers[0], 400**-0.5
    assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    for parameter in layer.parameters():
        assert 0.9 * bound < parameter.abs().max() <= bound


def test_the_loss_is_the_mean_cross_entropy_of_layers_with_relu_between() -> None:
    model, images, labels = new_model(), data().inputs.reshape(40, 2, 3), torch.from_numpy(data().labels)
    hidden = torch.relu(images.flatten(1) @ model.layers[0].weight.T + model.layers[0].bias)
    logits = hidden @ model.head.weight.T + model.head.bias
    output = model(images, labels)
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.loss, nn.functional.cross_entropy(logits, labels))
    linear = MLPForImageClassification(MLPConfig(6, [], 3))
    torch.testing.assert_close(linear(data().inputs).logits, linear.head(data().inputs))


def test_there_are_as_many_classes_as_was_said_and_no_other_arguments() -> None:
    assert MLPConfig(id2label={0: "no", 1: "yes"}).num_labels == 2
    assert mlp(num_features=4, hidden_sizes=[5], num_labels=3).config.num_labels == 3
    with refused("mlp"):
        mlp(num_labels=3, width=8, depth=2)
