"""The retry policy: how long the waits are, what is retried, and that a stored policy comes back the same."""

from __future__ import annotations

import json
import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from scheduler.model.retry import DEFAULT_RETRY, STRATEGIES, RetryPolicy, error_names

S = 1_000_000
waits = st.floats(0, 1e6)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    low, high = sorted((draw(waits), draw(waits)))
    return RetryPolicy(
        low,
        high,
        draw(st.none() | st.integers(1, 10**9)),
        draw(st.floats(1, 1e6)),
        draw(st.floats(0, 1)),
        draw(st.sampled_from(STRATEGIES)),  # type: ignore[arg-type]
        draw(st.sampled_from([(), (OSError,), ("ValueError", "a.b.Error")])),
    )


def waits_of(policy: RetryPolicy, *attempts: int) -> list[float]:
    return [policy.wait_us(n, 0.0) / S for n in attempts]


def test_defaults_are_those_of_automatic_retry() -> None:
    assert (DEFAULT_RETRY.min_wait, DEFAULT_RETRY.max_wait, DEFAULT_RETRY.max_attempts) == (10, 3600, 5)
    assert (DEFAULT_RETRY.factor, DEFAULT_RETRY.jitter, DEFAULT_RETRY.strategy) == (2, 0.1, "exponential")
    assert RetryPolicy(min_wait=10, max_wait=3600, max_attempts=5) == DEFAULT_RETRY


@pytest.mark.both_databases
@pytest.mark.case(11)
def test_exponential_waits_are_capped_and_end_with_the_budget() -> None:
    policy = RetryPolicy(min_wait=40, max_wait=90, max_attempts=3, factor=3)
    assert waits_of(policy, 1, 2) == [40, 90]
    assert [policy.allows(used) for used in (0, 1, 2, 3, 4)] == [True, True, True, False, False]


@pytest.mark.case(12, pure=True)
def test_waits_double_up_to_twelve_hours() -> None:
    policy = RetryPolicy(10, 43200, max_attempts=None)
    assert waits_of(policy, *range(1, 14)) == [10 * 2**n for n in range(13)]
    assert waits_of(policy, 14) == [43200]


@pytest.mark.case(12, pure=True)
@pytest.mark.parametrize("n", [20, 64, 65535, 10**9, 10**400])
def test_any_attempt_number_waits_the_cap_at_most(n: int) -> None:
    assert RetryPolicy(10, 43200).wait_us(n, 0.0) == 43200 * S
    assert RetryPolicy(10, 43200, strategy="linear").wait_us(n, 0.0) == min(10 * n, 43200) * S
    assert RetryPolicy(10, 43200, factor=1.0).wait_us(n, 0.0) == 10 * S
    assert RetryPolicy(0, 43200).wait_us(n, 0.0) == 0
    assert RetryPolicy(10, 43200, factor=1e308).wait_us(n, 0.0) == 43200 * S
    assert RetryPolicy(10, 43200, None).allows(n)


@pytest.mark.case(13, pure=True)
@given(policies(), st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_waits_lie_between_the_policy_and_its_jitter(policy: RetryPolicy, n: int, dice: float) -> None:
    if policy.strategy == "exponential":
        try:
            expected = min(policy.min_wait * policy.factor ** (n - 1), policy.max_wait)
        except OverflowError:
            expected = policy.max_wait if policy.min_wait else 0
    else:
        expected = {
            "linear": min(policy.min_wait * n, policy.max_wait),
            "fixed": policy.min_wait,
            "none": 0.0,
        }[policy.strategy]
    base = policy.wait_us(n, 0.0)
    assert base == round(expected * S)
    assert base <= policy.wait_us(n, dice) <= math.ceil(base * (1 + policy.jitter))


@pytest.mark.case(13, pure=True)
def test_jitter_lengthens_by_its_share_also_at_the_cap() -> None:
    policy = RetryPolicy(10, 20, jitter=0.5)
    assert policy.wait_us(1, 0.5) == 12.5 * S
    assert policy.wait_us(9, 1.0) == 30 * S
    assert RetryPolicy(10, 20, jitter=0).wait_us(1, 0.999) == 10 * S


@given(policies(), st.integers(1, 10**6))
def test_waits_never_shrink_with_the_attempts(policy: RetryPolicy, n: int) -> None:
    assert policy.wait_us(n, 0.0) <= policy.wait_us(n + 1, 0.0)


@pytest.mark.case(14)
def test_the_other_strategies() -> None:
    assert waits_of(RetryPolicy(10, 25, strategy="linear"), 1, 2, 3, 4) == [10, 20, 25, 25]
    assert waits_of(RetryPolicy(10, 25, strategy="fixed"), 1, 2, 3, 4) == [10, 10, 10, 10]
    none = RetryPolicy(strategy="none", max_attempts=7)
    assert none.max_attempts == 1
    assert not none.allows(1)
    assert none.wait_us(1, 0.9) == 0
    assert RetryPolicy.none().max_attempts == 1


class Flaky(ConnectionError):
    """A user's own error."""


@pytest.mark.case(14)
@pytest.mark.parametrize(
    ("retry_on", "error", "matches"),
    [
        ((), KeyError(), True),
        ((), KeyboardInterrupt(), True),
        ((ConnectionError,), ConnectionResetError(), True),
        (ConnectionError, Flaky(), True),
        ((ConnectionError, KeyError), ValueError(), False),
        (("OSError",), Flaky(), True),
        ("builtins.OSError", Flaky(), True),
        (["Flaky"], Flaky(), True),
        (["other.Flaky"], Flaky(), False),
        ((Flaky,), ConnectionError(), False),
        (("Error",), ValueError(), False),
    ],
)
def test_retry_on_matches_the_class_or_a_base_by_name(retry_on: object, error: BaseException, matches: bool) -> None:
    policy = RetryPolicy(retry_on=retry_on)  # type: ignore[arg-type]
    assert policy.matches(error) is matches
    assert RetryPolicy.from_json(policy.to_json()).matches(error) is matches
    assert policy.matches_names(error_names(type(error))) is matches


def test_an_error_of_the_script_itself_is_named_without_its_module() -> None:
    mine = type("Mine", (Exception,), {"__module__": "__main__"})
    policy = RetryPolicy(retry_on=[mine])
    assert policy.retry_on == ("Mine",)
    assert policy.matches_names(["jobs.Mine", "builtins.Exception"])  # the same file, imported by a worker


def test_waits_may_be_timedeltas() -> None:
    policy = RetryPolicy(min_wait=timedelta(seconds=90), max_wait=timedelta(hours=1))
    assert (policy.min_wait, policy.max_wait) == (90.0, 3600.0)
    assert policy == RetryPolicy(90, 3600)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"min_wait": -1}, "min_wait"),
        ({"max_wait": timedelta(seconds=-1)}, "max_wait"),
        ({"min_wait": 20, "max_wait": 10}, "longer than max_wait"),
        ({"min_wait": math.nan}, "min_wait"),
        ({"max_wait": math.inf}, "max_wait"),
        ({"min_wait": "10"}, "min_wait"),
        ({"min_wait": True}, "min_wait"),
        ({"factor": 0.5}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"factor": 10**400}, "factor"),
        ({"factor": "2"}, "factor"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 2.0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"strategy": "random"}, "exponential, fixed, linear, none"),
        ({"retry_on": 5}, "retry_on"),
        ({"retry_on": (int,)}, "retry_on"),
        ({"retry_on": (ValueError(),)}, "retry_on"),
        ({"retry_on": ("not a name",)}, "retry_on"),
        ({"retry_on": ""}, "retry_on"),
    ],
)
def test_what_does_not_fit_is_refused_when_built(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RetryPolicy(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "dice"), [(0, 0.0), (-1, 0.0), (1, -0.1), (1, 1.1), (1, math.nan)])
def test_wait_refuses_what_it_cannot_mean(n: int, dice: float) -> None:
    with pytest.raises(ValueError, match=r"must be between|counts failed"):
        DEFAULT_RETRY.wait_us(n, dice)


@given(policies())
def test_a_stored_policy_comes_back_the_same(policy: RetryPolicy) -> None:
    text = policy.to_json()
    assert RetryPolicy.from_json(text) == policy
    assert RetryPolicy.from_json(text.encode()).to_json() == text
    assert set(json.loads(text)) == set(RetryPolicy.__struct_fields__)  # defaults too: they may change one day


@pytest.mark.parametrize("text", ["", "[]", '{"min_wait":"x"}', '{"wait":1}', '{"max_attempts":0}', "null"])
def test_what_is_no_stored_policy_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        RetryPolicy.from_json(text)


def test_policies_are_values() -> None:
    assert len({DEFAULT_RETRY, RetryPolicy(), RetryPolicy(retry_on=OSError)}) == 2
    with pytest.raises(AttributeError):
        DEFAULT_RETRY.min_wait = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min": 1}, "RetryPolicy has no 'min'; did you mean 'min_wait'?"),
        ({"attempts": 1}, "RetryPolicy has no 'attempts'; there are min_wait, max_wait, max_attempts"),
    ],
)
def test_an_unknown_argument_is_named_with_what_was_meant(given: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RetryPolicy(**given)  # type: ignore[arg-type]
    assert str(raised.value).startswith(says)
