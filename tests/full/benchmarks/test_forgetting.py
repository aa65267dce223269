from benchmarks.forgetting import report


def test_the_table_has_changes_from_the_model_as_it_was_with_their_part_of_plain_fine_tuning() -> None:
    names = ("new", "exact", "prose", "public", "own", "checks")

    def line(task: str, way: str, seed: int, *values: float) -> dict[str, object]:
        return {"task": task, "way": way, "seed": seed, "share": 0.25, **dict(zip(names, values, strict=True))}

    results = [
        line("a", "before", 1, 5.0, 0.0, 4.0, 2.0, 2.0, 0.5),
        line("b", "before", 1, 3.0, 0.0, 4.0, 2.0, 2.0, 0.5),
        line("a", "plain", 1, 1.0, 0.5, 4.2, 3.0, 4.0, 0.25),
        line("b", "plain", 1, 1.0, 0.5, 4.6, 3.0, 4.0, 0.25),
        line("a", "kl", 1, 2.0, 0.25, 4.1, 2.0, 2.5, 0.5),
        line("b", "kl", 1, 2.0, 0.75, 4.1, 2.0, 2.5, 0.5),
        line("a", "kl", 2, 2.0, 0.5, 4.1, 2.0, 2.5, 0.5),
        line("c", "kl", 1, 2.0, 0.5, 4.1, 2.0, 2.5, 0.5),  # nobody knows what it was before
    ]
    assert report(results).splitlines()[2:] == [
        "| plain | 2 | 25% | -3.000 ± 1.414 (100%) | +50% ± 0% | +0.400 ± 0.283 (100%) | +1.000 ± 0.000 (100%) | "
        "+2.000 ± 0.000 (100%) | -25% ± 0% |",
        "| kl | 3 | 25% | -2.333 ± 1.155 (67%) | +50% ± 25% | +0.100 ± 0.000 (25%) | +0.000 ± 0.000 (0%) | "
        "+0.500 ± 0.000 (25%) | +0% ± 0% |",
    ]
