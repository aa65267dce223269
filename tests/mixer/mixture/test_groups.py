from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.mixture.groups import Grouping, Groups
from mixer.mixture.stream import Stream
from tests.refusals import refused

LANGUAGES, DOMAINS = ("de", "en"), ("chat", "code", "web")

positive = st.floats(0.05, 1.0)


def cross_streams(num_samples: int = 100) -> list[Stream]:
    return [
        Stream(f"{language}-{domain}", range(num_samples), groups={"language": language, "domain": domain})
        for language in LANGUAGES
        for domain in DOMAINS
    ]


def flat_streams(groups: str, num_samples: int = 10) -> list[Stream]:
    return [Stream(f"s{k}", range(num_samples), groups={"g": group}) for k, group in enumerate(groups)]


def shares_of(weights: list[float]) -> np.ndarray:
    array = np.array(weights, dtype=np.float64)
    return array / array.sum()


def marginals(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    table = shares.reshape(len(LANGUAGES), len(DOMAINS))
    return table.sum(axis=1), table.sum(axis=0)


@pytest.mark.parametrize(
    ("groups", "weights", "caps", "shares", "expected"),
    [
        ("xxyy", {"x": 3, "y": 1}, {}, [1, 2, 3, 4], [0.25, 0.5, 0.75 / 7, 1 / 7]),
        ("xxy", {"x": 0, "y": 1}, {}, [1, 1, 1], [0.0, 0.0, 1.0]),
        # The weight of an absent group goes to the others; where only those of weight zero are left, they share.
        ("xyz", {"x": 1, "y": 1, "z": 2}, {}, [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]),
        ("xxy", {"x": 0, "y": 1}, {}, [0.25, 0.75, 0.0], [0.25, 0.75, 0.0]),
        ("xyz", {}, {}, [1, 2, 3], [1 / 6, 1 / 3, 1 / 2]),
        # What is above a cap goes to the others in proportion, and they may be above theirs then.
        ("xyz", {}, {"x": 0.4}, [7, 1, 2], [0.4, 0.2, 0.4]),
        ("xyz", {}, {"x": 0.4, "y": 0.25}, [7, 2, 1], [0.4, 0.25, 0.35]),
        ("xyz", {}, {"z": 0.6}, [1, 2, 3], [1 / 6, 1 / 3, 1 / 2]),
        # Caps that cannot all hold are met as near as can be; that of a group that is alone gives way.
        ("xy", {}, {"x": 0.1, "y": 0.3}, [1, 1], [0.25, 0.75]),
        ("xxy", {}, {"x": 0.1}, [0.5, 0.5, 0], [0.5, 0.5, 0]),
        ("xyz", {"x": 8, "y": 1, "z": 1}, {"x": 0.5}, [1, 1, 1], [0.5, 0.25, 0.25]),
    ],
)
def test_shares_of_one_grouping(groups, weights, caps, shares, expected) -> None:
    fitted = Groups(flat_streams(groups), [Grouping("g", weights, max_shares=caps)]).fit(shares_of(shares))
    np.testing.assert_allclose(fitted, expected)


class TestWeights:
    @given(
        weights=st.lists(positive, min_size=6, max_size=6),
        languages=st.lists(positive, min_size=2, max_size=2),
        domains=st.lists(positive, min_size=3, max_size=3),
    )
    def test_two_groupings_hold_together(self, weights, languages, domains) -> None:
        groupings = [
            Grouping("language", dict(zip(LANGUAGES, languages, strict=True))),
            Grouping("domain", dict(zip(DOMAINS, domains, strict=True))),
        ]
        fitted = Groups(cross_streams(), groupings).fit(shares_of(weights))
        found_languages, found_domains = marginals(fitted)
        np.testing.assert_allclose(found_languages, shares_of(languages), atol=1e-9)
        np.testing.assert_allclose(found_domains, shares_of(domains), atol=1e-9)

    @given(weights=st.lists(positive, min_size=6, max_size=6))
    def test_proportional_fitting_keeps_the_odds_between_streams(self, weights: list[float]) -> None:
        groupings = [Grouping("language", {"de": 1, "en": 3}), Grouping("domain", {"chat": 1, "code": 1, "web": 2})]
        before = shares_of(weights)
        after = Groups(cross_streams(), groupings).fit(before).reshape(2, 3)
        before = before.reshape(2, 3)
        odds = [(table[0, 0] * table[1, 1]) / (table[0, 1] * table[1, 0]) for table in (before, after)]
        assert odds[0] == pytest.approx(odds[1])

    @given(weights=st.lists(st.sampled_from([0.0, 0.2, 1.0]), min_size=6, max_size=6).filter(any))
    def test_zeros_stay_and_the_sum_is_one(self, weights: list[float]) -> None:
        groupings = [Grouping("language", {"de": 1, "en": 3}), Grouping("domain", max_shares={"web": 0.4})]
        fitted = Groups(cross_streams(), groupings).fit(shares_of(weights))
        assert fitted.sum() == pytest.approx(1.0)
        assert fitted.min() >= 0.0
        assert not fitted[np.array(weights) == 0].any()


class TestCaps:
    @given(weights=st.lists(positive, min_size=6, max_size=6), cap=st.floats(0.34, 1.0))
    def test_a_cap_is_never_exceeded(self, weights: list[float], cap: float) -> None:
        fitted = Groups(cross_streams(), [Grouping("domain", max_shares=dict.fromkeys(DOMAINS, cap))]).fit(
            shares_of(weights)
        )
        assert marginals(fitted)[1].max() <= cap + 1e-9
        assert fitted.sum() == pytest.approx(1.0)

    def test_weights_of_one_grouping_and_caps_of_another_hold_together(self) -> None:
        groupings = [Grouping("language", {"de": 1, "en": 1}), Grouping("domain", max_shares={"code": 0.3})]
        languages, domains = marginals(Groups(cross_streams(), groupings).fit(shares_of([1, 9, 2, 1, 5, 1])))
        np.testing.assert_allclose(languages, [0.5, 0.5], atol=1e-9)
        assert domains[1] <= 0.3 + 1e-9


class TestEpochs:
    @pytest.mark.parametrize(
        ("groups", "epochs", "available", "shares", "seen", "expected"),
        [
            ("xxy", 1.5, [np.inf] * 3, [3, 1, 1], [6, 4, 99], [15.0, 5.0, np.inf]),
            # A member without a share, or that can give little or nothing, leaves the rest to the others.
            ("xxy", 1, [np.inf] * 3, [1, 0, 1], [10, 5, 0], [5.0, 0.0, np.inf]),
            ("xx", 1, [0.0, np.inf], [1, 1], [10, 5], [0.0, 5.0]),
            ("xx", 1, [2.0, np.inf], [1, 1], [5, 5], [2.0, 8.0]),
            ("xxx", 4.1, [np.inf] * 3, [1, 1, 1], [0, 0, 0], [41.0] * 3),  # 4.1 * 30 is 122.99999999999999
        ],
    )
    def test_what_is_left_is_split_by_shares(self, groups, epochs, available, shares, seen, expected) -> None:
        grouped = Groups(flat_streams(groups), [Grouping("g", max_epochs={"x": epochs})])
        assert grouped.limit(np.array(available), shares_of(shares), np.array(seen)).tolist() == expected

    def test_the_split_is_whole_and_complete(self) -> None:
        groups = Groups(flat_streams("xxy"), [Grouping("g", max_epochs={"x": 1.5})])
        for seen in range(31):
            first, second, _ = groups.limit(np.full(3, np.inf), shares_of([2, 1, 1]), np.array([seen, 0, 0]))
            assert first + second == 30 - seen
            assert first == int(first)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("weights", [{"x": w} for w in (-1.0, 0.0, NAN, INF)]),
        ("max_shares", [{"x": share} for share in (0.0, -0.1, 1.1, NAN)]),
        ("max_epochs", [{"x": epochs} for epochs in (0.0, -1.0, NAN, INF)]),
        *[(option, [{"x": 1.0, "y": 1.0, "q": 1.0}]) for option in ("weights", "max_shares", "max_epochs")],
        ("weights", [{"x": 1.0}]),
    ],
)
def test_groupings_that_do_not_fit_are_refused(option: str, values: list[Any]) -> None:
    for value in values:
        with refused(option):
            Groups(flat_streams("xy"), [Grouping("g", **{option: value})])
    with refused("groups"):
        Groups(flat_streams("xy"), [Grouping("other")])
