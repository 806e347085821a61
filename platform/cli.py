"""The command `stormsail`: assembles the commands that the packages register, and ends each run of it cleanly.

Whatever happens ends in an exit code and at most one message: an error of ours says what, where and what
to do; a bug leaves its traceback in a file; Ctrl-C is no error. With `--json` errors are JSON on stdout too.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from typing import Annotated, NoReturn

import typer

from stormsail.platform.console import emit, emit_json, styled
from stormsail.platform.errors import InternalError, StormsailError, UserCodeError
from stormsail.platform.home import Home

GROUP = "stormsail.commands"
_PACKAGE = "stormsail"
_EXIT_INTERRUPTED = 130
_EXIT_PIPE = 141
# The base of all usage errors. Older versions of typer take it from click, newer ones have their own.
_UsageProblem = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

Register = Callable[[typer.Typer], None]


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str], *, registers: Iterable[Register] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: Without the program's name.
        registers: What adds the commands; None: those of the installed package.

    Returns:
        The exit code: 130 for Ctrl-C, 141 when the reader of our output left, else as `errors.py` says.
    """
    arguments, debug, as_json = _global_flags(arguments)
    try:
        app = build_app(discover() if registers is None else registers)
        code = _invoke(app, arguments)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        emit(styled("interrupted", "yellow", stream=sys.stderr), stream=sys.stderr)
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return _EXIT_PIPE
    except StormsailError as error:
        return _tell(error, debug=debug, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the process ends here; nothing may leave as a bare traceback
        if isinstance(error, _UsageProblem):
            return _tell_usage(error, as_json=as_json)
        return _tell(_crash(error, arguments), debug=debug, as_json=as_json)
    return code


def build_app(registers: Iterable[Register]) -> typer.Typer:
    """The command line with the commands that `registers` add."""
    app = typer.Typer(
        name=_PACKAGE,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Keeps a large training run on Ray alive: sees trouble early, repairs it, proves the repair.",
    )
    app.callback()(_globals)
    for register in registers:
        register(app)
    return app


def discover() -> list[Register]:
    """The registering functions of our own distribution, by entry point name.

    Only ours are looked at: scanning every installed package would cost more than the command itself.

    Raises:
        InternalError: Stormsail is not installed as a package, or one of its modules cannot be loaded.
    """
    try:
        points = distribution(_PACKAGE).entry_points
    except PackageNotFoundError:
        raise InternalError(
            "Stormsail runs from a folder, but is not installed", todo="install it: pip install --editable ."
        ) from None
    return load_registers(points.select(group=GROUP))


def load_registers(points: Iterable[EntryPoint]) -> list[Register]:
    """Load what the entry points name.

    Raises:
        InternalError: One of them cannot be loaded; none is ever left out in silence.
    """
    registers: list[Register] = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            registers.append(point.load())
        except (ImportError, AttributeError) as error:
            raise InternalError(
                f"the commands of this package cannot be loaded: {error}",
                where=point.value,
                todo="the installation is damaged or half-way: install Stormsail again",
            ) from error
    return registers


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it like this
    if wanted:
        emit(f"{_PACKAGE} {distribution(_PACKAGE).version}")
        raise typer.Exit


def _globals(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    del debug, version  # --debug is taken out before, so that it works behind any command; here for --help


def _global_flags(arguments: Sequence[str]) -> tuple[list[str], bool, bool]:
    """The arguments without --debug, and whether --debug and --json were among those before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours, rest = arguments[:end], arguments[end:]
    return [word for word in ours if word != "--debug"] + list(rest), "--debug" in ours, "--json" in ours


def _invoke(app: typer.Typer, arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        outcome = command.main(args=arguments, prog_name=_PACKAGE, standalone_mode=False)
    except SystemExit as ending:
        # typer ends the process with 1, which means a bug of ours, when the reader of our output left.
        if isinstance(ending.__context__, BrokenPipeError):
            raise ending.__context__ from None
        raise
    code = outcome if isinstance(outcome, int) else 0
    if code == _EXIT_INTERRUPTED:  # typer turns Ctrl-C into this code
        raise KeyboardInterrupt
    return code


def _tell(error: StormsailError, *, debug: bool, as_json: bool) -> int:
    if as_json:
        emit_json({"error": {"kind": type(error).__name__, "exit_code": error.exit_code, **_parts(error)}})
    if debug:
        traceback.print_exception(error)  # ends with the message
    else:
        emit(f"{styled('error', 'red', stream=sys.stderr)}: {error}", stream=sys.stderr)
    if isinstance(error, UserCodeError) and error.details:
        emit(f"\n{error.details.rstrip()}", stream=sys.stderr)
    return error.exit_code


def _parts(error: StormsailError) -> dict[str, object]:
    return {name: value for name, value in vars(error).items() if not name.startswith("_")}


def _tell_usage(error: Exception, *, as_json: bool) -> int:
    """A wrong command line; typer's own words, with the usage of the command that was meant."""
    code: int = getattr(error, "exit_code", 2)
    if as_json:
        what = str(getattr(error, "message", error))
        emit_json(
            {"error": {"kind": "UsageError", "exit_code": code, "what": what, "where": "command line", "todo": ""}}
        )
    show: Callable[[], None] = getattr(error, "show", lambda: None)
    show()
    return code


def _crash(error: Exception, arguments: Sequence[str]) -> InternalError:
    """The error to show for an exception that nobody expected, its traceback kept in a file."""
    text = "".join(traceback.format_exception(error))
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = Home.here().path / "crashes" / f"{stamp}-{os.getpid()}.txt"
    what = f"this is a bug of ours: {type(error).__name__}: {error}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"stormsail {' '.join(arguments)}\nPython {sys.version}\n\n{text}", encoding="utf-8")
    except OSError as failure:
        emit(text, stream=sys.stderr)
        crash = InternalError(what, todo=f"please report it with the traceback above ({path}: {failure.strerror})")
    else:
        crash = InternalError(what, todo=f"please report it with the traceback in {path}")
    crash.__cause__ = error
    return crash


def _silence_stdout() -> None:
    """Nobody reads any more: keep Python's own flush at exit from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
