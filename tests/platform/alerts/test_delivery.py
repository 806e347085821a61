"""Errors of a delivery."""

from __future__ import annotations

import pickle

from stormsail.platform.alerts.delivery import DeliveryError


def test_an_error_keeps_what_the_other_side_asked_for_across_processes() -> None:
    error = pickle.loads(pickle.dumps(DeliveryError("no", retry_after_s=30.0, permanent=True)))
    assert (error.what, error.retry_after_s, error.permanent) == ("no", 30.0, True)
