import numpy as np
import pytest

from mixer.schedules import Constant, Function, NoiseScale, NormTest, Ramp, Schedule, as_schedule, schedule_classes
from mixer.schedules import __all__ as exported


class TestScheduleClasses:
    def test_every_exported_schedule_is_known(self) -> None:
        import mixer.schedules

        found = {name: getattr(mixer.schedules, name) for name in exported if name[0].isupper()}
        concrete = {
            name: value
            for name, value in found.items()
            if isinstance(value, type) and issubclass(value, Schedule) and not value.__abstractmethods__
        }
        assert schedule_classes() == concrete


class TestAsSchedule:
    def test_a_schedule_is_taken_as_it_is(self) -> None:
        schedule = Ramp(64, 1e6)
        assert as_schedule(schedule) is schedule

    @pytest.mark.parametrize("given", [32, np.int64(32)])
    def test_a_number_is_constant(self, given: int) -> None:
        schedule = as_schedule(given)
        assert isinstance(schedule, Constant)
        assert schedule.is_constant
        assert (schedule.initial, type(schedule.initial)) == (32, int)

    def test_nothing_is_constant_and_left_to_the_training_arguments(self) -> None:
        schedule = as_schedule(None)
        assert isinstance(schedule, Constant)
        assert schedule.initial is None

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("Constant", Constant),
            ("noise_scale", NoiseScale),
            ("noise-scale", NoiseScale),
            ("NOISESCALE", NoiseScale),
            ("norm_test", NormTest),
        ],
    )
    def test_a_name(self, name: str, kind: type[Schedule]) -> None:
        assert type(as_schedule(name)) is kind

    def test_a_function(self) -> None:
        schedule = as_schedule(lambda step, batch_size: 24)
        assert isinstance(schedule, Function)
        assert schedule.start(16).batch_size == 24


class TestErrors:
    def test_an_unknown_name_lists_what_there_is_and_guesses(self) -> None:
        with pytest.raises(
            ValueError, match=r"batch_size: no schedule is called 'rmap'.*'Ramp'.*Did you mean 'Ramp'\?"
        ):
            as_schedule("rmap")

    @pytest.mark.parametrize(
        ("name", "required"),
        [
            ("ramp", r"\['final', 'over'\]"),
            ("function", r"\['function'\]"),
            ("critical_batch_warmup", r"\['sizes'\]"),
            ("seesaw", r"\['maximum'\]"),
            ("loss_change", r"\['maximum'\]"),
            ("smoothed_loss_change", r"\['maximum'\]"),
        ],
    )
    def test_a_name_that_needs_arguments_names_them(self, name: str, required: str) -> None:
        with pytest.raises(ValueError, match=rf"batch_size: \w+ needs {required}; give an instance"):
            as_schedule(name)

    def test_a_class_is_not_an_instance(self) -> None:
        with pytest.raises(
            TypeError, match=r"batch_size is the class Ramp; give an instance: batch_size=Ramp\(\.\.\.\)"
        ):
            as_schedule(Ramp)

    @pytest.mark.parametrize("given", [0, -8])
    def test_a_number_below_one_is_refused(self, given: int) -> None:
        with pytest.raises(ValueError, match=f"batch_size must be at least 1 sample, got {given}"):
            as_schedule(given)

    @pytest.mark.parametrize("given", [True, 16.0, b"ramp", [16], {"ramp": 1}])
    def test_anything_else_is_refused(self, given: object) -> None:
        with pytest.raises(TypeError, match=f"batch_size must be a whole number .* a {type(given).__name__}"):
            as_schedule(given)
