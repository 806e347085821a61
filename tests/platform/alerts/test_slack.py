"""Webhooks, against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.ears import Webhook, webhook

from stormsail.platform.alerts.delivery import DeliveryError
from stormsail.platform.alerts.slack import SlackChannel, _seconds


@pytest.fixture
def ear() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


def refusal(ear: Webhook, status: int, **headers: str) -> DeliveryError:
    ear.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}))
    with pytest.raises(DeliveryError) as caught:
        SlackChannel(ear.url, timeout_s=5.0).send("subject", "body")
    assert "s3cr3t" not in str(caught.value)
    return caught.value


def test_a_message_arrives_with_its_signs_escaped(ear: Webhook) -> None:
    SlackChannel(ear.url, timeout_s=5.0).send("a < b", "c & d")
    assert ear.heard == ["*a &lt; b*\nc &amp; d"]


@pytest.mark.parametrize(("status", "permanent"), [(429, False), (500, False), (503, False), (404, True), (403, True)])
def test_what_passes_is_tried_again_and_what_does_not_is_not(ear: Webhook, status: int, permanent: bool) -> None:
    error = refusal(ear, status)
    assert error.permanent is permanent
    assert str(status) in error.what


def test_the_wait_that_is_asked_for_is_passed_on(ear: Webhook) -> None:
    assert refusal(ear, 429, Retry_After="30").retry_after_s == 30.0


def test_a_redirect_is_not_taken_for_a_delivery(ear: Webhook) -> None:
    assert refusal(ear, 302, Location=ear.url).permanent
    assert "a question" not in ear.heard


def test_one_that_never_answers_is_left_after_the_limit(ear: Webhook) -> None:
    ear.silent = True
    with pytest.raises(DeliveryError, match="cannot be reached: timed out"):
        SlackChannel(ear.url, timeout_s=0.1).send("s", "b")


def test_nobody_there_is_said_without_the_address() -> None:
    with pytest.raises(DeliveryError, match="cannot be reached") as caught:
        SlackChannel("http://127.0.0.1:1/s3cr3t", timeout_s=5.0).send("s", "b")
    assert not caught.value.permanent
    assert "s3cr3t" not in str(caught.value)


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(DeliveryError, match="must begin with http"):
        SlackChannel("file:///etc/passwd", timeout_s=1.0)


def test_a_user_in_the_address_is_named_in_a_header_and_shown_nowhere(ear: Webhook) -> None:
    url = ear.url.replace("://", "://bot:hunter2%40secret@")
    SlackChannel(url, timeout_s=5.0).send("s", "b")
    assert ear.heard == ["*s*\nb"]
    assert ear.users == ["bot:hunter2@secret"]


@pytest.mark.parametrize(
    "url", ["http://[abc", "https://bot:pass@host:port/hook", "https:///hook", "https://h:0/x", "https://h:99999/x"]
)
def test_what_is_no_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(DeliveryError) as caught:
        SlackChannel(url, timeout_s=1.0)
    assert caught.value.permanent
    assert str(caught.value).startswith("the webhook's address is no address")


NOW = "Sun, 29 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("asked", "now", "seconds"),
    [
        (None, NOW, None),
        ("7", None, 7.0),
        ("-3", None, 0.0),
        ("Sun, 29 Nov 2026 10:00:30 GMT", NOW, 30.0),
        ("Sun, 29 Nov 2026 10:00:30 GMT", None, None),
        ("soon", NOW, None),
    ],
)
def test_a_wait_may_be_seconds_or_a_date(asked: str | None, now: str | None, seconds: float | None) -> None:
    assert _seconds(asked, now) == seconds
