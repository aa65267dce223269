from dataclasses import replace

from mixer.analysis.report.headline import headline
from mixer.analysis.report.run import Run
from mixer.policies.objective import Objective
from tests.mixer.analysis.report.runs import calm_run


def ended(name: str, objective: Objective | None, **losses: float) -> Run:
    run = replace(calm_run(), name=name, objective=objective)
    for stream, loss in losses.items():
        run.evaluations[stream].loc[6, "loss"] = loss
    return run


def test_runs_are_compared_with_the_first_by_the_objective_that_one_of_them_declared() -> None:
    objective = Objective({"math": 3.0, "code": 1.0})
    runs = [ended("uniform", None, math=2.0, code=4.0), ended("auto", objective, math=1.5, code=4.5)]
    found = headline(runs)
    assert found[0] == (
        "The objective, average loss of math and code, ended at 2.500 in uniform and 2.250 in auto (-10.0 %)."
    )
    assert found[1].startswith("Lower is better")
    assert headline([runs[0]]) == []


def test_one_run_says_where_it_began_and_which_bounds_it_broke() -> None:
    objective = Objective(["math"], bounds={"code": 1.05, "chat": 1.05})
    run = ended("run", objective, math=2.0, code=5.5, chat=5.0)
    assert headline([run]) == [
        "The objective, loss of math, code at most 1.05 times its first loss and chat at most 1.05 times its first "
        "loss, went from 5.000 to 2.000.",
        "In run the loss of code ended at 1.1 times that of the first evaluation: above its bound of 1.05.",
    ]
    assert headline([ended("run", Objective(["unknown"]))]) == []
