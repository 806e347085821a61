"""What the first command happened to have set does not reach the host."""

from __future__ import annotations

from pathlib import Path

from stormsail.supervisor.host.environment import host_environment, ray_environment


def test_leftovers_of_ray_and_launchers_are_dropped_and_the_rest_stays() -> None:
    present = {
        "PATH": "/bin",
        "AWS_PROFILE": "training",
        "STORMSAIL_HOME": "/home",
        "STORMSAIL__TRAIN__STEPS": "5",
        "RAY_ADDRESS": "192.0.2.1:6379",
        "RAY_AUTH_TOKEN": "secret",
        "RANK": "1",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
    }
    assert host_environment(present) == {"PATH": "/bin", "AWS_PROFILE": "training", "STORMSAIL_HOME": "/home"}


def test_devices_chosen_by_the_user_stay_and_those_chosen_by_ray_do_not() -> None:
    assert host_environment({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert host_environment({"CUDA_VISIBLE_DEVICES": "", "RAY_JOB_ID": "01000000"}) == {}


def test_the_token_is_named_and_never_copied(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    variables = ray_environment(token)
    assert variables["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert "secret" not in variables.values()
