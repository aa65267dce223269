import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.mixture.groups import Grouping, Groups
from mixer.mixture.stream import Stream

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


class TestWeights:
    @given(
        weights=st.lists(positive, min_size=6, max_size=6),
        languages=st.lists(positive, min_size=2, max_size=2),
        domains=st.lists(positive, min_size=3, max_size=3),
    )
    def test_language_and_domain_hold_together(self, weights, languages, domains) -> None:
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
        groupings = [
            Grouping("language", {"de": 1, "en": 3}),
            Grouping("domain", {"chat": 1, "code": 1, "web": 2}),
        ]
        before = shares_of(weights)
        after = Groups(cross_streams(), groupings).fit(before).reshape(2, 3)
        before = before.reshape(2, 3)
        odds = [(table[0, 0] * table[1, 1]) / (table[0, 1] * table[1, 0]) for table in (before, after)]
        assert odds[0] == pytest.approx(odds[1])

    def test_streams_keep_their_proportions_inside_a_group(self) -> None:
        fitted = Groups(flat_streams("xxyy"), [Grouping("g", {"x": 3, "y": 1})]).fit(shares_of([1, 2, 3, 4]))
        np.testing.assert_allclose(fitted, [0.25, 0.5, 0.75 / 7, 1 / 7])

    def test_a_group_of_weight_zero_gets_nothing(self) -> None:
        fitted = Groups(flat_streams("xxy"), [Grouping("g", {"x": 0, "y": 1})]).fit(shares_of([1, 1, 1]))
        assert fitted.tolist() == [0.0, 0.0, 1.0]

    def test_the_weight_of_an_absent_group_goes_to_the_others(self) -> None:
        fitted = Groups(flat_streams("xyz"), [Grouping("g", {"x": 1, "y": 1, "z": 2})]).fit(np.array([0.5, 0.5, 0.0]))
        np.testing.assert_allclose(fitted, [0.5, 0.5, 0.0])

    def test_where_only_groups_of_weight_zero_are_left_they_share(self) -> None:
        fitted = Groups(flat_streams("xxy"), [Grouping("g", {"x": 0, "y": 1})]).fit(np.array([0.25, 0.75, 0.0]))
        np.testing.assert_allclose(fitted, [0.25, 0.75, 0.0])

    @given(weights=st.lists(st.sampled_from([0.0, 0.2, 1.0]), min_size=6, max_size=6).filter(any))
    def test_zeros_stay_and_the_sum_is_one(self, weights: list[float]) -> None:
        groupings = [Grouping("language", {"de": 1, "en": 3}), Grouping("domain", max_shares={"web": 0.4})]
        fitted = Groups(cross_streams(), groupings).fit(shares_of(weights))
        assert fitted.sum() == pytest.approx(1.0)
        assert fitted.min() >= 0.0
        assert not fitted[np.array(weights) == 0].any()

    def test_fitting_twice_changes_nothing(self) -> None:
        groups = Groups(cross_streams(), [Grouping("language", {"de": 1, "en": 2}), Grouping("domain")])
        once = groups.fit(shares_of([1, 2, 3, 4, 5, 6]))
        np.testing.assert_allclose(groups.fit(once), once, atol=1e-12)

    def test_without_groupings_nothing_changes(self) -> None:
        shares = shares_of([1, 2, 3])
        assert np.array_equal(Groups(flat_streams("xyz"), []).fit(shares), shares)


class TestCaps:
    def test_what_is_above_a_cap_goes_to_the_others_in_proportion(self) -> None:
        fitted = Groups(flat_streams("xyz"), [Grouping("g", max_shares={"x": 0.4})]).fit(shares_of([7, 1, 2]))
        np.testing.assert_allclose(fitted, [0.4, 0.2, 0.4])

    def test_what_is_pushed_above_its_cap_is_capped_too(self) -> None:
        grouping = Grouping("g", max_shares={"x": 0.4, "y": 0.25})
        fitted = Groups(flat_streams("xyz"), [grouping]).fit(shares_of([7, 2, 1]))
        np.testing.assert_allclose(fitted, [0.4, 0.25, 0.35])

    @given(weights=st.lists(positive, min_size=6, max_size=6), cap=st.floats(0.34, 1.0))
    def test_a_cap_is_never_exceeded(self, weights: list[float], cap: float) -> None:
        fitted = Groups(cross_streams(), [Grouping("domain", max_shares=dict.fromkeys(DOMAINS, cap))]).fit(
            shares_of(weights)
        )
        assert marginals(fitted)[1].max() <= cap + 1e-9
        assert fitted.sum() == pytest.approx(1.0)

    def test_a_cap_that_does_not_bind_changes_nothing(self) -> None:
        shares = shares_of([1, 2, 3])
        fitted = Groups(flat_streams("xyz"), [Grouping("g", max_shares={"z": 0.6})]).fit(shares)
        np.testing.assert_allclose(fitted, shares)

    def test_caps_that_cannot_all_hold_are_met_as_near_as_can_be(self) -> None:
        grouping = Grouping("g", max_shares={"x": 0.1, "y": 0.3})
        np.testing.assert_allclose(Groups(flat_streams("xy"), [grouping]).fit(shares_of([1, 1])), [0.25, 0.75])

    def test_the_cap_of_a_group_that_is_alone_gives_way(self) -> None:
        grouping = Grouping("g", max_shares={"x": 0.1})
        np.testing.assert_allclose(Groups(flat_streams("xxy"), [grouping]).fit(np.array([0.5, 0.5, 0])), [0.5, 0.5, 0])

    def test_weights_of_one_grouping_and_caps_of_another_hold_together(self) -> None:
        groupings = [Grouping("language", {"de": 1, "en": 1}), Grouping("domain", max_shares={"code": 0.3})]
        languages, domains = marginals(Groups(cross_streams(), groupings).fit(shares_of([1, 9, 2, 1, 5, 1])))
        np.testing.assert_allclose(languages, [0.5, 0.5], atol=1e-9)
        assert domains[1] <= 0.3 + 1e-9

    def test_weights_and_caps_of_the_same_grouping(self) -> None:
        grouping = Grouping("g", {"x": 8, "y": 1, "z": 1}, max_shares={"x": 0.5})
        np.testing.assert_allclose(Groups(flat_streams("xyz"), [grouping]).fit(shares_of([1, 1, 1])), [0.5, 0.25, 0.25])


class TestEpochs:
    def limit(self, grouping: Grouping, weights: list[float], seen: list[int]) -> list[float]:
        groups = Groups(flat_streams("xxy"), [grouping])
        return groups.limit(np.full(3, np.inf), shares_of(weights), np.array(seen)).tolist()

    def test_what_is_left_is_split_by_shares(self) -> None:
        assert self.limit(Grouping("g", max_epochs={"x": 1.5}), [3, 1, 1], [6, 4, 99]) == [15.0, 5.0, np.inf]

    @pytest.mark.parametrize("seen", range(31))
    def test_the_split_is_whole_and_complete(self, seen: int) -> None:
        first, second, _ = self.limit(Grouping("g", max_epochs={"x": 1.5}), [2, 1, 1], [seen, 0, 0])
        assert first + second == 30 - seen
        assert first == int(first)

    def test_the_last_sample_is_given_to_one(self) -> None:
        assert sorted(self.limit(Grouping("g", max_epochs={"x": 1}), [1, 1, 1], [10, 9, 0])[:2]) == [0.0, 1.0]

    def test_a_member_without_a_share_leaves_the_rest_to_the_others(self) -> None:
        assert self.limit(Grouping("g", max_epochs={"x": 1}), [1, 0, 1], [10, 5, 0])[0] == 5.0

    def test_a_member_that_can_give_nothing_leaves_the_rest_to_the_others(self) -> None:
        groups = Groups(flat_streams("xx"), [Grouping("g", max_epochs={"x": 1})])
        limited = groups.limit(np.array([0.0, np.inf]), np.array([0.5, 0.5]), np.array([10, 5]))
        assert limited.tolist() == [0.0, 5.0]

    def test_a_member_that_can_give_little_leaves_the_rest_to_the_others(self) -> None:
        groups = Groups(flat_streams("xx"), [Grouping("g", max_epochs={"x": 1})])
        limited = groups.limit(np.array([2.0, np.inf]), np.array([0.5, 0.5]), np.array([5, 5]))
        assert limited.tolist() == [2.0, 8.0]


class TestArguments:
    @pytest.mark.parametrize("weights", [{"x": -1.0}, {"x": 0.0}, {"x": float("nan")}, {"x": float("inf")}])
    def test_weights_that_cannot_be_are_refused(self, weights: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="Grouping 'g': weights must be 0 or more and not all 0"):
            Grouping("g", weights)

    @pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
    def test_caps_that_cannot_be_are_refused(self, share: float) -> None:
        with pytest.raises(ValueError, match=r"Grouping 'g': max_shares must be in \(0, 1\]"):
            Grouping("g", max_shares={"x": share})

    @pytest.mark.parametrize("epochs", [0.0, -1.0, float("nan"), float("inf")])
    def test_epochs_that_cannot_be_are_refused(self, epochs: float) -> None:
        with pytest.raises(ValueError, match="Grouping 'g': max_epochs must be above 0"):
            Grouping("g", max_epochs={"x": epochs})

    def test_a_stream_outside_all_groups_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"Grouping 'g'.*no group in it: \['lost'\]"):
            Groups([*flat_streams("x"), Stream("lost", [1])], [Grouping("g")])

    @pytest.mark.parametrize("what", ["weights", "max_shares", "max_epochs"])
    def test_a_group_without_a_stream_is_named(self, what: str) -> None:
        with pytest.raises(ValueError, match=rf"Grouping 'g': {what} names groups without a stream: \['q'\]"):
            Groups(flat_streams("x"), [Grouping("g", **{what: {"x": 1.0, "q": 1.0}})])

    def test_a_group_without_a_weight_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"a weight for every group or none; missing: \['y'\]"):
            Groups(flat_streams("xy"), [Grouping("g", {"x": 1.0})])
