import pickle

import pytest

from mixer.utils.errors import InvalidTypeError, InvalidValueError


@pytest.mark.parametrize(("kind", "base"), [(InvalidValueError, ValueError), (InvalidTypeError, TypeError)])
def test_facts_survive_pickling_as_between_processes(kind: type, base: type) -> None:
    error = kind(option="weight", stream="math", expected="positive", found=-1.0, hint="Leave it out.")
    assert str(error) == "weight of the stream 'math' must be positive, got -1.0. Leave it out."
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert isinstance(again, base)
    assert (str(again), vars(again)) == (str(error), vars(error))
