"""What Apprise delivers, with the real Apprise."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.support.ears import Webhook, webhook

from stormsail.platform.alerts.delivery import DeliveryError
from stormsail.platform.alerts.others import AppriseChannel

# Apprise imports modules of Python that are going away.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def ear() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


def address(ear: Webhook) -> str:
    """As Slack's webhooks, by Apprise's own way for Mattermost-like ones."""
    host = ear.url.removeprefix("http://").partition("/")[0]
    return f"mmost://{host}/s3cr3ts3cr3ts3cr3t123"


def test_a_message_arrives(ear: Webhook) -> None:
    AppriseChannel(f"# where to\n\n{address(ear)}\n").send("subject", "body")
    assert len(ear.heard) == 1
    assert "subject" in ear.heard[0]
    assert "body" in ear.heard[0]


def test_a_refusal_is_an_error(ear: Webhook) -> None:
    ear.answers += [(500, {})] * 5
    with pytest.raises(DeliveryError, match="could not deliver"):
        AppriseChannel(address(ear)).send("s", "b")


def test_a_line_that_is_no_address_is_named_by_its_number() -> None:
    with pytest.raises(DeliveryError, match="line 2 is no address") as caught:
        AppriseChannel("json://localhost\nno-such-thing://s3cr3t")
    assert "s3cr3t" not in str(caught.value)


def test_no_address_at_all_is_an_error() -> None:
    with pytest.raises(DeliveryError, match="there is no address"):
        AppriseChannel("# none yet")


def test_without_apprise_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(DeliveryError, match="pip install"):
        AppriseChannel("json://localhost")
