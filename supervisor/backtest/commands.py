"""The command `backtest`: the detectors on a curve that any trainer logged. Light: what works is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(backtest)


def backtest(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="CSV, JSON lines, TensorBoard events, a trainer's plain log, a folder of those, or mlflow:RUN_ID.",
            show_default=False,
        ),
    ] = None,
    *,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What really happened: series,start,end,action_expected.")
    ] = None,
    presets: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="default, sensitive, quiet or article; may be repeated, the first gives the alarms.",
        ),
    ] = None,
    rules: Annotated[
        list[str] | None, typer.Option("--rule", metavar="NAME", help="Only this rule; may be repeated.")
    ] = None,
    continues: Annotated[
        str | None, typer.Option(metavar="FILE", help="The part of the run before the one FILE, to judge its restart.")
    ] = None,
    calm_context: Annotated[
        int, typer.Option(min=0, metavar="ROWS", help="Calm made-up rows before each curve, to judge a fragment.")
    ] = 0,
    data_period: Annotated[
        int, typer.Option(min=0, metavar="STEPS", help="Period of the data's order: a swing of it is no oscillation.")
    ] = 0,
    step_column: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the step.")] = None,
    loss_column: Annotated[str | None, typer.Option(metavar="NAME", help="Column or metric of the loss.")] = None,
    norm_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column or metric of the gradient norm.")
    ] = None,
    tracking_uri: Annotated[str | None, typer.Option(metavar="URI", help="Where MLflow keeps the run.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw it (.svg, .png or .pdf).")] = None,
    list_rules: Annotated[bool, typer.Option("--list", help="Show all rules with their thresholds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")] = False,
) -> None:
    """Try the detectors on yesterday's crash: what would have been said, and when; no change to any trainer."""
    from stormsail.platform.errors import ConfigError
    from stormsail.supervisor.backtest import showing
    from stormsail.supervisor.backtest.columns import Columns
    from stormsail.supervisor.backtest.session import Request

    if list_rules:
        showing.show_rules(as_json=as_json)
        return
    if not files:
        raise ConfigError(
            "name at least one file to look at", where="backtest", todo="for example: stormsail backtest train.log"
        )
    request = Request(
        names=tuple(files),
        columns=Columns(step_column, loss_column, norm_column),
        presets=tuple(presets or ("default",)),
        rules=tuple(rules or ()),
        continues=continues,
        calm_rows=calm_context,
        data_period=data_period,
        labels=labels,
        tracking_uri=tracking_uri,
    )
    if not showing.show(request, plot=plot, as_json=as_json):
        raise typer.Exit(ConfigError.exit_code)
