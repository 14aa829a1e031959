"""`swe-rl data convert`: any dataset form in, our own form out."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from swe_rl.errors import DataError, UsageError
from swe_rl.tasks.eval_script import eval_script_for
from swe_rl.tasks.forms import COLUMNS
from swe_rl.tasks.hub import hub_rows
from swe_rl.tasks.images import image_of, with_registry
from swe_rl.tasks.load import RowError, not_certified, read_row, write_tasks
from swe_rl.tasks.rows import RawRow, iter_rows
from swe_rl.tasks.splits import split_rows
from swe_rl.types import Task


@dataclass
class ConvertOptions:
    """What to change on the way. Empty values change nothing. source_name: data_source of tasks that name none."""

    data_source: str = ""
    source_name: str = ""
    image_template: str = ""
    registry: str = ""
    eval_scripts: bool = False
    only_certified: bool = False
    instance_ids: frozenset[str] = frozenset()
    limit: int = 0


@dataclass
class ConvertCount:
    """rejected: the first 20 refused rows; the numbers count all."""

    written: int = 0
    refused: int = 0
    left_out: int = 0
    rejected: list[RowError] = field(default_factory=list)

    def refuse(self, error: RowError) -> None:
        self.refused += 1
        if len(self.rejected) < 20:
            self.rejected.append(error)


def convert_rows(rows: Iterator[RawRow], options: ConvertOptions, count: ConvertCount) -> Iterator[Task]:
    """The tasks of `rows` after `options`; what is refused is counted in `count`."""
    seen: set[str] = set()
    for raw in rows:
        if options.limit and len(seen) >= options.limit:
            return
        item = read_row(raw)
        if isinstance(item, RowError):
            count.refuse(item)
        elif item.instance_id in seen:
            count.refuse(RowError(raw.file, raw.line, f"instance_id {item.instance_id} appears twice"))
        elif (options.instance_ids and item.instance_id not in options.instance_ids) or (
            options.only_certified and not_certified(item)
        ):
            count.left_out += 1
        else:
            try:
                task = convert_task(item, options)
            except DataError as error:
                count.refuse(RowError(raw.file, raw.line, str(error)))
                continue
            seen.add(task.instance_id)
            yield task


def convert_task(task: Task, options: ConvertOptions) -> Task:
    """One task with source, image and script set. Raises DataError where a script is wanted and cannot be made."""
    source = options.data_source or task.data_source or options.source_name
    image = task.image
    if options.image_template:
        image = image_of(task, options.image_template)
    script = eval_script_for(task) if options.eval_scripts else task.eval_script
    return replace(task, data_source=source, image=with_registry(image, options.registry), eval_script=script)


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Write any dataset form as JSONL in our own form: a local file, a folder, or a Hugging Face dataset.",
        epilog=f"example: {prog} --input swe_gym.parquet --output train.jsonl --data-source swe_gym --eval-scripts",
    )
    parser.add_argument("source", nargs="?", help="same as --input")
    parser.add_argument("--input", "--input-path", "--local-path", help="file or folder (JSONL, JSON, Parquet, .gz)")
    parser.add_argument(
        "--dataset",
        "--dataset-name",
        "--hf-dataset",
        "--train-data-source",
        help="name on a Hugging Face hub (a path that exists counts as --input)",
    )
    parser.add_argument(
        "--split", "--train-split", help="split of a hub dataset (default train), or of a folder (default: every file)"
    )
    parser.add_argument(
        "--dataset-config",
        "--train-config",
        default="",
        help="configuration, for datasets of several (default: all files)",
    )
    parser.add_argument("--output", "--output-path", "--out", "-o", help="the JSONL file to write")
    parser.add_argument("--output-dir", help="in place of --output: the folder to write --output-name in")
    parser.add_argument("--output-name", default="train.jsonl", help="name of the file in --output-dir (%(default)s)")
    parser.add_argument(
        "--data-source",
        default="",
        help="name written into every task (swe_gym, swe_bench ...; default: a hub dataset's name, else the row's own)",
    )
    parser.add_argument(
        "--eval-scripts", action="store_true", help="write eval scripts into the rows (swebench makes them)"
    )
    parser.add_argument(
        "--image-template", default="", help="image names, with {instance_id} {id_1776} {id_s} {repo} {version}"
    )
    parser.add_argument("--registry", default="", help="registry or mirror put before image names")
    parser.add_argument("--instance-ids", default="", help="only these: comma-separated, or a file with one a line")
    parser.add_argument(
        "--limit", "--max-instances", "--max-samples", type=int, default=0, help="at most this many tasks (0 = all)"
    )
    parser.add_argument("--only-certified", action="store_true", help="leave out tasks that certification did not pass")
    parser.add_argument("--strict", action="store_true", help="fail (exit code 1) if any row is rejected")
    return parser


def main(argv: list[str], prog: str = "swe-rl data convert") -> int:
    """Exit code 0 where the file was written, 1 where no row was usable (or --strict and one was not)."""
    arguments = build_parser(prog).parse_args(argv)
    given = [value for value in (arguments.source, arguments.input, arguments.dataset) if value]
    if len(given) != 1:
        raise UsageError("give one source: a file or folder (--input), or a hub dataset (--dataset)")
    local = arguments.source or arguments.input
    if arguments.dataset and Path(arguments.dataset).exists():
        local = arguments.dataset
    output = _output(arguments)
    if local and output.resolve() == Path(local).resolve():
        raise UsageError(f"--output: {output} is the file that is read; what is left out would be lost. Name another")
    if (
        local
        and not Path(local).exists()
        and local.count("/") == 1
        and not local.endswith((".jsonl", ".parquet", ".json"))
    ):
        raise UsageError(f"{local}: no such file; for a hub dataset say --dataset {local}")
    if arguments.limit < 0:
        raise UsageError(f"--limit {arguments.limit}: must not be negative")
    options = ConvertOptions(
        data_source=arguments.data_source or ("" if local else arguments.dataset),
        source_name=arguments.dataset or "",
        image_template=arguments.image_template,
        registry=arguments.registry,
        eval_scripts=arguments.eval_scripts,
        only_certified=arguments.only_certified,
        instance_ids=_ids(arguments.instance_ids),
        limit=arguments.limit,
    )
    if not local:
        rows = hub_rows(arguments.dataset, arguments.split or "train", arguments.dataset_config, COLUMNS)
    elif arguments.split:
        rows = split_rows(Path(local), arguments.split, arguments.dataset_config, COLUMNS)
    else:
        rows = iter_rows(local, COLUMNS)
    count = ConvertCount()
    _write(output, rows, options, count, strict=arguments.strict)
    for error in count.rejected:
        print(f"rejected {error}", file=sys.stderr)
    left = f", {count.left_out} left out" if count.left_out else ""
    print(f"{output}: {count.written} tasks written, {count.refused} rows rejected{left}")
    return 1 if arguments.strict and count.refused else 0


def _output(arguments: argparse.Namespace) -> Path:
    """The file to write. Raises UsageError unless exactly one of --output and --output-dir is given."""
    if bool(arguments.output) == bool(arguments.output_dir):
        raise UsageError("give the file to write (--output), or the folder it goes in (--output-dir)")
    if arguments.output:
        return Path(arguments.output)
    return Path(arguments.output_dir).expanduser() / arguments.output_name


def _ids(value: str) -> frozenset[str]:
    listed = value.replace(",", "\n")
    try:
        if value and Path(value).is_file():
            listed = Path(value).read_text("utf-8")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # a list of ids longer than any file's name
            raise
    return frozenset(line.strip() for line in listed.splitlines() if line.strip())


def _write(output: Path, rows: Iterator[RawRow], options: ConvertOptions, count: ConvertCount, *, strict: bool) -> None:
    columns = (SpinnerColumn(), TextColumn("converting"), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("converting", total=options.limit or None)

        def counted() -> Iterator[Task]:
            for task in convert_rows(rows, options, count):
                count.written += 1
                progress.advance(bar)
                yield task
            if count.written == 0 or (strict and count.refused):
                first = f"; the first refused: {count.rejected[0]}" if count.rejected else ""
                what = "none usable" if count.written == 0 else f"{count.refused} rows rejected (--strict)"
                raise DataError(f"{output}: not written: {what}{first}")

        write_tasks(output, counted())
