"""`stormsail sweep FILE`, `sweep status` and `sweep apply`. Ray, torch and storage are imported inside, never above."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from stormsail.platform.console import emit, emit_json
from stormsail.platform.errors import CheckFailedError, ConfigError, TryLaterError
from stormsail.platform.home import Home

if TYPE_CHECKING:  # light commands load nothing that this needs
    from stormsail.platform.runs import RunPlace
    from stormsail.tuning.answer import Answer
    from stormsail.tuning.sweep import Request

FileArgument = Annotated[Path, typer.Argument(help="The sweep's YAML file.", metavar="FILE")]
NameArgument = Annotated[str, typer.Argument(help="The sweep's name, or NAME@2.", metavar="NAME")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")]
StorageOption = Annotated[
    str | None, typer.Option("--storage", metavar="URL", help="Where the sweep lives; default: the embedded store.")
]

_WATCH_S = 3.0
_HELP = ("-h", "--help")


class SweepGroup(TyperGroup):
    """`sweep FILE` means `sweep run FILE`: what is no command of the group is a file."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own context
        """Put the hidden command's name in front where it was left out."""
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = ["run", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add this package's commands."""
    group = typer.Typer(
        cls=SweepGroup,
        no_args_is_help=True,
        help="Find settings that stay stable, on small proxies: `stormsail sweep FILE`.",
    )
    group.command("run", hidden=True)(run)
    group.command()(status)
    group.command()(apply)
    app.add_typer(group, name="sweep")


def run(
    file: FileArgument,
    *,
    fresh: Annotated[bool, typer.Option(help="Begin anew; what is there is kept as NAME@N.")] = False,
    take_over: Annotated[bool, typer.Option(help="Take the sweep from a driver whose lease has expired.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table as CSV.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write one self-contained page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the sweep that FILE describes, or go on with it, and print its table."""
    from stormsail.supervisor.host.lease import hold
    from stormsail.tuning.loading import load_sweep
    from stormsail.tuning.sweep import run_sweep

    home = Home.here()
    request = load_sweep(file, environ=os.environ, fresh=fresh, take_over=take_over)
    out = sys.stderr if as_json else sys.stdout
    with hold(home):
        ended = run_sweep(request, home=home, notify=_notify, out=out)
        _show(ended.answer, as_json=as_json)  # before what may fail: it is what the hours were for
        _write(ended.answer, csv, html)
        _mirror(request, ended.answer, ended.place, home)
    _judge(ended.answer, ended.errors)


def status(
    name: NameArgument,
    *,
    watch: Annotated[bool, typer.Option(help="Say so again and again, until the sweep is done.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table as CSV.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write one self-contained page.")] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how a sweep stands, from its storage alone."""
    from stormsail.tuning.finding import find_sweep
    from stormsail.tuning.records import SweepRecords
    from stormsail.tuning.sweep import read_answer
    from stormsail.tuning.watching import watch_sweep

    home = Home.here()
    place = find_sweep(home, name, storage, _notify)
    records = SweepRecords(place.store())
    if watch:
        watch_sweep(records, out=sys.stderr if as_json else sys.stdout, every_s=_WATCH_S)
    answer = read_answer(records)
    _write(answer, csv, html)
    _show(answer, as_json=as_json)


def apply(
    name: NameArgument,
    *,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Another file than the sweep's target.")] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the winner into the target's YAML, each value with its source, and the certificate beside it."""
    from stormsail.tuning.applying import apply_sweep
    from stormsail.tuning.finding import find_sweep

    applied = apply_sweep(find_sweep(Home.here(), name, storage, _notify), to)
    if as_json:
        emit_json({"sweep": name, "file": applied.file, "certificate": applied.certificate, "changed": applied.changed})
        return
    for line in applied.changed:
        emit(f"{applied.file}: {line}")
    emit(f"{applied.certificate}: the certificate, valid for exactly these settings")


def _notify(text: str) -> None:
    typer.echo(text, err=True)


def _show(answer: Answer, *, as_json: bool) -> None:
    from stormsail.tuning.table import render_answer

    if as_json:
        emit_json({"sweep": answer, "standing": answer.standing, "winner": answer.winner})
    else:
        emit(render_answer(answer))


def _write(answer: Answer, csv: Path | None, html: Path | None) -> None:
    from stormsail.tuning.page import render_page
    from stormsail.tuning.table import to_csv

    if csv is not None:
        _write_file(csv, to_csv(answer.rows))
    if html is not None:
        _write_file(html, render_page(answer))


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}", where=str(path)) from error


def _mirror(request: Request, answer: Answer, place: RunPlace, home: Home) -> None:
    from stormsail.tuning.mirror import mirror_answer

    problem = mirror_answer(answer, request.target, place, home)
    if problem:
        _notify(f"MLflow was not told of this sweep: {problem}")


def _judge(answer: Answer, errors: dict[str, str]) -> None:
    """The exit code: 75 for an incomplete sweep, 3 for one without an answer."""
    if not answer.complete:
        first = next(iter(errors.items()), None)
        why = "" if first is None else f"; the first of {len(errors)}, {first[0]}: {first[1]}"
        raise TryLaterError(
            f"{answer.total - answer.done} trials were not measured{why}",
            where=answer.name,
            todo="go on with the same command: what was measured is kept",
        )
    if answer.winner is None:
        raise CheckFailedError(f"the sweep has no answer: {answer.standing}", where=answer.name)
