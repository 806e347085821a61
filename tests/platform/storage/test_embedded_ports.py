"""Ports stay the same while they are free, and never collide with their higher twins."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stormsail.platform.storage.embedded_ports import COUNT, GRPC_OFFSET, choose_ports, socket_files


def test_ports_are_different_from_each_other_and_from_their_twins(tmp_path: Path) -> None:
    ports = choose_ports(tmp_path / "ports.json", fresh=True)
    both = {*ports, *(port + GRPC_OFFSET for port in ports)}
    assert len(both) == 2 * COUNT
    assert max(both) < 32768  # where the kernel's ports for clients begin


def test_the_next_start_gets_the_same_ports(tmp_path: Path) -> None:
    note = tmp_path / "ports.json"
    ports = choose_ports(note, fresh=False)
    assert choose_ports(note, fresh=False) == ports
    assert choose_ports(note, fresh=True) != ports


@pytest.mark.parametrize("offset", [0, GRPC_OFFSET])
def test_ports_that_somebody_took_are_given_up(tmp_path: Path, offset: int) -> None:
    note = tmp_path / "ports.json"
    ports = choose_ports(note, fresh=False)
    with socket.create_server(("127.0.0.1", ports[2] + offset)):
        others = choose_ports(note, fresh=False)
    assert ports[2] not in others
    assert choose_ports(note, fresh=False) == others


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '["a", "b", "c", "d", "e"]'])
def test_a_damaged_note_is_replaced(tmp_path: Path, content: str) -> None:
    note = tmp_path / "ports.json"
    note.write_text(content)
    assert len(choose_ports(note, fresh=False)) == COUNT


def test_only_sockets_of_these_ports_are_named() -> None:
    assert socket_files([]) == []
