import pytest

from mixer.mixture.clock import Budget


def test_a_budget_in_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="in epochs, samples, tokens or steps, got none of them"):
        Budget()


@pytest.mark.parametrize("name", ["epochs", "samples", "tokens", "steps"])
@pytest.mark.parametrize("value", [0, -3])
def test_a_budget_of_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be above 0 and finite, got {value}"):
        Budget(**{name: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_budget_that_is_no_number_of_epochs_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="epochs must be above 0 and finite"):
        Budget(epochs=value)


@pytest.mark.parametrize("value", [True, "3", [2]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="epochs must be a number"):
        Budget(epochs=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["samples", "tokens", "steps"])
@pytest.mark.parametrize("value", [1e9, 2.5])
def test_what_is_counted_is_whole(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a whole number"):
        Budget(**{name: value})


def test_parts_of_an_epoch_are_fine() -> None:
    assert Budget(epochs=0.5).is_in_steps
    assert not Budget(epochs=0.5, tokens=10).is_in_steps
