"""The reference pages, made from the code. They are kept in the repository, so that a forge shows them, too.

A page has a text of its own, and then what the code says, after a line such as ``<!-- commands: ... -->``. A test
compares the two; after a change of the code this writes the pages again::

    .venv/bin/python scripts/reference.py
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

sys.path.insert(0, str(Path(__file__).absolute().parent.parent))

import click
from pydantic import BaseModel

import trinitylake_core
from dagster_project.config.file import ProjectSettings
from dagster_project.config.values import Cron, Duration, MaybeEnv, Options, Owner, TimeZone
from pipelines.cli.command import COMMON, PROGRAM, Command
from pipelines.cli.contents import ALIASES, ENTRIES, OPTION_ALIASES, SECTIONS
from pipelines.cli.program import load
from trinitylake_core.definitions import LakehouseOptions, TableChanges, TableOptions, ViewChanges, ViewOptions
from trinitylake_core.durations import describe_duration
from trinitylake_core.recovery.target import MEANING

ROOT: Final = Path(__file__).absolute().parent.parent
_OPTIONS: Final = (LakehouseOptions, TableOptions, TableChanges, ViewOptions, ViewChanges)
_NAMED: Final = (
    (Cron, "cron schedule"),
    (TimeZone, "time zone"),
    (Owner, "`team:NAME` or e-mail address"),
    (Duration, "duration"),
    (MaybeEnv, "text or reference"),
    (Options, "mapping of texts or references"),
    (str, "text"),
    (int, "number"),
    (float, "number"),
    (bool, "flag"),
    (timedelta, "duration"),
)
"""What a type of a field is called."""
_MARK: Final = "<!-- {}: made from the code by scripts/reference.py, which also writes it again -->"
_SECTION: Final = re.compile(r"^([^\s#][^:]*(?::NAME)?):\n((?: {2}.*\n|\n)+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^ {4}(\*{0,2}\w+(?:, \w+)*|)(?! )(\S?.*)$")
_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")
_LITERAL: Final = re.compile(r"``([^`]+)``")
_CITATION: Final = re.compile(r" \((?:`docs/)?format[^()]*\)")
_LISTS: Final = {"Args:": "Arguments", "Attributes:": "Attributes", "Raises:": "Raises"}
_EMPTY: Final = inspect.Parameter.empty
_OPTIONAL: Final = re.compile(r"([\w\])]) \| None\b")


def make_page(name: str) -> str:
    """Return a page as it should be: its own text as it is, and below the mark what the code says now."""
    mark = _MARK.format(name)
    own, found, _ = page_path(name).read_text(encoding="utf-8").partition(mark)
    if not found:
        raise ValueError(f"{page_path(name)} has no line {mark!r}")
    lines = re.sub(r"\n{3,}", "\n\n", "\n".join(PAGES[name]()))
    return f"{own}{mark}\n\n{lines.strip()}\n"


def page_path(name: str) -> Path:
    """Return where a page of the reference lies."""
    return ROOT / f"docs/reference/{name}.md"


# -- the command line ------------------------------------------------------------------------------------


_TIMES: Final = re.compile(r"[:,] ISO 8601, UTC.*$")
_REPEATED: Final = "; may be repeated"
DEFINITION: Final = "the definition of a lakehouse"
FIELDS: Final = "[`LakehouseOptions`](library.md#lakehouseoptions)"
DEFAULTS: Final = "[these defaults](../format.md#5-definitions)"
GROUPS: Final = {
    "a past version": ("--version", "--timestamp", "--snapshot"),
    "where it runs": ("--engine", "--master", "--remote", "--spark-conf"),
    "a stored plan": ("--plan-to", "--plan"),
    DEFINITION: (
        "--order",
        "--namespace-name-max-size-bytes",
        "--table-name-max-size-bytes",
        "--view-name-max-size-bytes",
        "--node-file-max-size-bytes",
        "--txn-ttl-millis",
        "--txn-isolation-level",
        "--properties",
    ),
}
"""Options that commands have together, by the name that the page has for them."""
EXPLAINED_IN: Final = {
    "history": ("following a lakehouse", "reference/json.md#following-a-lakehouse"),
    "serve": ("Iceberg REST", "rest.md"),
    "upgrade": ("before you upgrade", "comparison.md#who-writes-and-who-reads"),
    "compact": ("what a compaction gives", "costs.md#what-a-compaction-gives"),
    "expire": ("which versions expire", "retention.md#which-versions-expire"),
    "clean": ("which files go", "retention.md#which-files-go"),
    "tables compact": ("compaction of tables", "tables.md#compaction-of-tables"),
    "tables expire": ("which snapshots of tables expire", "retention.md#which-snapshots-of-tables-expire"),
    "tables clean": ("which files go", "retention.md#which-files-go"),
    "mend": ("a file is damaged", "runbook.md#a-file-is-damaged"),
    "freeze": ("the runbook", "runbook.md"),
    "rollback": ("the nightly deploy broke the catalog", "runbook.md#the-nightly-deploy-broke-the-catalog"),
    "undo": ("the nightly deploy broke the catalog", "runbook.md#the-nightly-deploy-broke-the-catalog"),
    "restore": ("a namespace was dropped", "runbook.md#a-namespace-was-dropped"),
    "export": ("is my backup good?", "runbook.md#is-my-backup-good"),
    "try": ("start here", "start.md"),
}
"""The commands that a page explains, so that this one does not repeat what ``--help`` says besides."""


def commands() -> Iterator[str]:
    """Yield the reference of all commands, section by section; first the options that several of them have."""
    times = Counter(row for name in ENTRIES for row in _rows(load(name)))
    shared = {name: row for (name, row), count in times.items() if count > 1 and not _is_of_other_place(name)}
    grouped = {option for group in GROUPS.values() for option in group}
    yield from ("## Options of several commands", "", "Of every command:", "")
    yield from map(_item, map(_row, COMMON))
    yield from ("", "Of those commands that name them:", "")
    yield from (_item(row) for name, row in shared.items() if name not in grouped)
    yield "* `--…-storage-option KEY=VALUE`…: an option for the storage of the other place (default: those for ROOT)"
    for title, group in GROUPS.items():
        if title == DEFINITION:
            names = ", ".join(f"`{name}`" for name in group)
            yield from (
                "",
                f"{title.capitalize()}, as {FIELDS}, with {DEFAULTS}: {names}.",
            )
        else:
            yield from ("", f"{title.capitalize()}:", "", *(_item(shared[name]) for name in group))
    for title, entries in SECTIONS.items():
        yield from ("", f"## {title.capitalize()}", "")
        for each in entries:
            yield from _command(each.name, shared.items())
    aliases = ", ".join(f"`{alias}` is `{name}`" for alias, name in ALIASES.items())
    options = ", ".join(f"`{alias}` is `{name}`" for alias, name in OPTION_ALIASES.items())
    yield from (f"Aliases: {aliases}; of options, where a command has the one and not the other: {options}.", "")


def _command(name: str, shared: Container[tuple[str, tuple[str, str]]]) -> Iterator[str]:
    entry, command = ENTRIES[name], load(name)
    arguments = entry.synopsis.removeprefix(name).strip()
    form = "" if arguments == "ROOT" else f"`{arguments}`: "
    yield from (f"### {name}", "", f"{form}{entry.summary[0].upper()}{entry.summary[1:]}.", "")
    yield from (f"    {command.example}", "")
    if name in EXPLAINED_IN:
        yield from (f"See [{EXPLAINED_IN[name][0]}](../{EXPLAINED_IN[name][1]}).", "")
    elif command.details:
        yield from (_escaped(command.details), "")
    above = [option for option, row in _rows(command) if (option, row) in shared or _is_of_other_place(option)]
    items = [_item(row) for option, row in _rows(command) if option not in above]
    also = name_groups(above)
    if also:
        items.append(f"* [above](#options-of-several-commands): {', '.join(also)}")
    if items:
        yield from (*items, "")


def _is_of_other_place(option: str) -> bool:
    """Return whether an option is one of the storage of SOURCE, TARGET and so on: the page has one line for these."""
    return option.endswith("-storage-option") and option != "--storage-option"


def name_groups(options: list[str]) -> list[str]:
    """Return options in their order, each in backticks, those of a whole group of ``GROUPS`` as its name alone."""
    named = [f"`{each}`" for each in options]
    for title, group in GROUPS.items():
        if set(group) <= set(options):
            named = [each for each in named if each.strip("`") not in group] + [title]
    return named


def _rows(command: Command) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the arguments and options of a command: the name, and how the page shows it and its meaning."""
    for name, meaning in command.meanings.items():
        if name != "ROOT":
            yield name, (f"`{name}`", _escaped(meaning))
    for each in command.options:
        yield each.opts[-1], _row(each)


def _row(each: click.Option) -> tuple[str, str]:
    record = each.get_help_record(click.Context(click.Command(PROGRAM)))
    names, meaning = record or (", ".join(each.opts), "")
    if meaning.endswith(_REPEATED):
        return f"`{names}`…", _escaped(meaning.removesuffix(_REPEATED))
    return f"`{names}`", _escaped(meaning)


def _item(row: tuple[str, str]) -> str:
    name, meaning = row
    return f"* {name}: {meaning}"


# -- lakehouses.yaml -------------------------------------------------------------------------------------


def configuration() -> Iterator[str]:
    """Yield the reference of ``lakehouses.yaml``: each model with its fields, types, bounds and defaults."""
    seen: list[tuple[str, type[BaseModel]]] = [("", ProjectSettings)]
    for path, model in seen:  # grows while it is walked
        title = f"`{path}`" if path else "The file"
        yield from (f"## {title}", "", _doc(model), "")
        hints = get_type_hints(model, include_extras=True)
        for name, field in model.model_fields.items():
            inner = _model(field.annotation)
            here = f"{path}.{name}" if path else name
            if inner is not None:
                seen.append((f"{here}[]" if name == "lakehouses" else here, inner))
            bounds = "".join(f", {_bound(each)}" for each in field.metadata if _bound(each))
            yield f"* `{name}`: {_type(hints[name])}{bounds}{_default(field)}"
        yield ""


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)


def _type(annotation: Any) -> str:
    named = next((name for kind, name in _NAMED if kind == annotation), None)
    if named is not None:
        return named
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(annotation))
    if get_origin(annotation) in {Union, types.UnionType}:
        return " or ".join(_type(each) for each in get_args(annotation) if each is not type(None))
    if get_origin(annotation) is tuple:
        return f"list of {_type(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "fields below"
    if _model(annotation) is not None:
        return f"{_type(get_args(annotation)[0])}, each with fields below"
    raise TypeError(f"say in _NAMED what {annotation} is called")


def _bound(constraint: Any) -> str:
    words = {"ge": "at least", "le": "at most", "gt": "more than", "lt": "less than"}
    found = [f"{text} {getattr(constraint, name)}" for name, text in words.items() if hasattr(constraint, name)]
    return ", ".join(found)


def _default(field: Any) -> str:
    if field.is_required():
        return " (required)"
    value = field.get_default(call_default_factory=True)
    if value in (None, (), {}) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, timedelta):
        return f" (`{describe_duration(value.total_seconds())}`)"
    return f" (`{str(value).lower() if isinstance(value, bool) else value}`)"


# -- Python ----------------------------------------------------------------------------------------------


def library() -> Iterator[str]:
    """Yield the reference of ``trinitylake_core``: classes with their methods, then errors."""
    public = {name: getattr(trinitylake_core, name) for name in trinitylake_core.__all__}
    classes = {name: each for name, each in public.items() if isinstance(each, type)}
    errors = {name: each for name, each in classes.items() if issubclass(each, Exception)}
    first = [name for name in ("Lakehouse", "Transaction") if name in classes]
    described: set[Any] = set()
    for name in [*first, *sorted(classes.keys() - errors.keys() - set(first))]:
        yield from _class(name, classes[name], described)
    yield from ("## Keywords", "", "What `create`, `create_table`, `alter_table` and so on take by keyword.", "")
    for each in _OPTIONS:
        doc, meanings = _split_attributes(_doc(each))
        kinds = {name: _annotation(kind).removesuffix("?") for name, kind in _keywords(each).items()}
        fields = [(name, kind, meanings.get(name, "")) for name, kind in kinds.items()]
        yield from (f"### {each.__name__}", "", doc, "", *_fields(fields), "")
    yield from ("## Errors", "", "An error is also one of those that it is indented below.", "")
    yield from _errors(trinitylake_core.TrinityLakeError, set(errors.values()), 0)
    yield ""


OF_MANY_METHODS: Final = frozenset(
    {"timestamp", "snapshot", "reason", "dry_run", "expected_version", "before_commit", "storage_options"}
    | {"namespace", "name", "to_namespace", "to_name", "version"}
)
"""The arguments that the page of the library explains once."""
ERRORS_OF_MANY_METHODS: Final = frozenset({"InvalidInput", "ReadOnly", "StorageError", "UnsafeStorage"})
"""What a method may raise, which the page says once."""
OF_EVERY_JOB: Final = frozenset({"lake", "config", "spark", "storage_options", "review", "cancel", "progress"})
"""The arguments whose types the page says once."""
CALLS_OF_MANY_JOBS: Final = tuple(
    f"(lake, {config}, spark=None, *, review=None, cancel=None, progress=None) -> Report"
    for config in ("config=None", "config")
)
"""How most jobs are called, which the page says once."""
ERRORS_OF_MANY_JOBS: Final = frozenset({"Corrupt", "InvalidInput", "ReadOnly", "StorageError"})
"""What a job may raise, which the page says once."""
OF_MANY_CONFIGS: Final = frozenset({"now_millis", "plan_options", "source_options"})
"""The fields that the page has once; so it has the meaning of all that begin with ``spark_from_``."""
COMMAND_OF: Final = {"compaction": "compact", "backup": "export", "snapshot": "snapshot create"}
"""The command of a job that has another name."""
MORE_THAN_A_COMMAND: Final = frozenset({"backup", "snapshot"})
"""The jobs of which a command does a part only; the others do what their command does."""


def jobs() -> Iterator[str]:
    """Yield the reference of the jobs in ``pipelines``: how each is called, its configuration and its report."""
    modules = {path.stem: import_module(f"pipelines.{path.stem}") for path in sorted((ROOT / "pipelines").glob("*.py"))}
    found = {name: module for name, module in modules.items() if hasattr(module, "run")}
    reports = [
        (name, vars(module)[kind])
        for name, module in found.items()
        for kind in ("Plan", "Report")
        if hasattr(module, kind)
    ]
    times = Counter(row for name, kind in reports for row in _report_rows(name, kind))
    meanings = Counter(name for name, _, _ in times)
    shared = {row: None for row, count in times.items() if count > 1 and meanings[row[0]] == 1 and row[2]}
    yield from ("## Fields of several reports", "", *_fields(shared), "")
    for name, module in found.items():
        command = _command_of(name)
        link = f"Command: [`{command}`](commands.md#{command.replace(' ', '-')})." if command in ENTRIES else ""
        about = "" if link and name not in MORE_THAN_A_COMMAND else _CITATION.sub("", _summary(module))
        raised = _raised(module.run, ERRORS_OF_MANY_JOBS)
        yield from (f"## pipelines.{name}", "", " ".join(filter(None, (about, link, raised))), "")
        call = _signature(module.run, OF_EVERY_JOB)
        calls = [] if call in CALLS_OF_MANY_JOBS else [f"    {name}.run{call}"]
        if hasattr(module, "Config"):
            calls += _config(name, module.Config)
        yield from (*calls, "")
        for job, kind in reports:
            if job == name:
                yield from _report(name, kind, shared)


def _config(job: str, kind: type) -> Iterator[str]:
    """Yield a job's configuration: its signature, and what no option of its command sets."""
    command = _command_of(job)
    options: set[str] = set()
    if command in ENTRIES:
        names = (name.lower().lstrip("-").replace("-", "_") for name, _ in _rows(load(command)))
        options = {name.removeprefix("to_") for name in names} | {each.name or "" for each in load(command).options}
    explained = OF_MANY_CONFIGS | options
    yield f"    {job}.Config{_signature(kind, explained, OF_MANY_CONFIGS)}"
    meanings = _split_attributes(_doc(kind))[1]
    without_option = [
        f"* `{name}`: {meaning}"
        for name, meaning in meanings.items()
        if name not in explained and not name.startswith("spark_from_")
    ]
    if without_option:
        yield from ("", *without_option)


def _report(job: str, kind: type, shared: Container[tuple[str, str, str]]) -> Iterator[str]:
    """Yield what the fields of a report mean that are not ``shared`` with others."""
    first, _, rest = _split_attributes(_doc(kind))[0].partition("\n\n")
    paragraphs = [each for each in (first, rest) if "`" in each]
    rows = [row for row in _report_rows(job, kind) if row not in shared]
    if paragraphs or rows:
        yield from (f"### {job}.{kind.__name__}", "")
    if paragraphs:
        yield from ("\n".join(paragraphs), "")
    yield from (*_fields(rows), "")


def _report_rows(job: str, kind: type) -> list[tuple[str, str, str]]:
    """Return the fields of a report: all, unless ``--json`` of its command has all; then those with a meaning."""
    meanings = _split_attributes(_doc(kind))[1]
    annotations = {each.name: _annotation(each.type) for each in kind.__dict__["__dataclass_fields__"].values()}
    if annotations.keys() <= _fields_of_json(_command_of(job)):
        rows = [(name, "", meaning) for name, meaning in meanings.items()]
    else:
        rows = [(name, annotation, meanings.get(name, "")) for name, annotation in annotations.items()]
    return rows + [(name, "", _summary(value)) for name, value in vars(kind).items() if isinstance(value, property)]


def _command_of(job: str) -> str:
    return COMMAND_OF.get(job, job.replace("_", " "))


def _fields_of_json(section: str) -> set[str]:
    """Return the names of the fields that the contract has in a section, or in the shape that it refers to."""
    contract = (ROOT / "docs/reference/json.yaml").read_text(encoding="utf-8")
    block = dict(_SECTION.findall(contract)).get(section, "")
    shape = re.fullmatch(r"[A-Z]\w+", block.strip())
    return _fields_of_json(shape[0]) if shape else set(re.findall(r"^  (\w+)\??:", block, re.MULTILINE))


def _class(name: str, kind: type, described: set[Any]) -> Iterator[str]:
    """Yield a class; of methods that are ``described`` already, because another class has them, the names alone."""
    own = [(attribute, value) for attribute, value in _members(kind) if not attribute.startswith("_")]
    fields = [each for each in getattr(kind, "__dataclass_fields__", {}).values() if not each.name.startswith("_")]
    is_data = bool(fields) and vars(kind)["__dataclass_params__"].frozen
    doc, meanings = _split_attributes(_doc(kind))
    yield from (f"## {name}", "", doc, "")
    rows = [(each.name, _annotation(each.type), meanings.pop(each.name, "")) for each in fields]
    rows += [(attribute, "", meaning) for attribute, meaning in meanings.items()]
    for attribute, value in own:
        if isinstance(value, property):
            rows.append((attribute, "", "" if value in described else _summary(value)))
            described.add(value)
    if rows:
        yield from (*_fields(rows), "")
    again: list[str] = []
    for attribute, value in own:
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if function in described and not isinstance(value, property):
            again.append(f"`{attribute}`")
        elif inspect.isfunction(function) and not is_data:  # the methods of data are helpers of jobs
            described.add(function)
            yield from _function(function, attribute)
    yield ""
    if again:
        yield from (f"And the methods of `Lakehouse` from {again[0]} to {again[-1]}.", "")


def _fields(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a line for each field that has a meaning, and one with the names of all others."""
    others = []
    for name, kind, meaning in rows:
        shown = f"`{name}: {kind}`" if kind else f"`{name}`"
        if meaning:
            yield f"* {shown}: {meaning}"
        else:
            others.append(f"`{name}`")
    if others:
        yield f"* {', '.join(others)}"


def _split_attributes(doc: str) -> tuple[str, dict[str, str]]:
    """Return what a docstring says besides, and the meaning of each attribute that it names."""
    before, _, listed = doc.partition("*Attributes*\n\n")
    entries, _, after = listed.partition("\n\n")
    meanings = {}
    for entry in re.split(r"\n(?=\* )", entries):
        name, _, meaning = entry.removeprefix("* `").partition("`: ")
        if meaning:
            meanings[name] = " ".join(meaning.split())
    return f"{before}{after}".strip(), meanings


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class has, its own first, and what it inherits from classes of this project."""
    seen: set[str] = set()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] not in {"trinitylake_core", "pipelines"}:
            continue
        for name, value in vars(each).items():
            if name not in seen:
                seen.add(name)
                yield name, value


def _function(function: Callable[..., Any], name: str) -> Iterator[str]:
    summary = _summary(function)
    if "Raises" not in summary:
        summary = f"{summary} {_raised(function, ERRORS_OF_MANY_METHODS)}".rstrip()
    signature = " ".join(_signature(function, OF_MANY_METHODS).split()).replace("( ", "(").replace(" )", ")")
    yield f"* `{name}{signature}`: {summary}"


def _raised(function: Callable[..., Any], known: Container[str] = ()) -> str:
    """Return a sentence with the public errors that a docstring names as raised; empty without any."""
    named = re.findall(r"\b[A-Z]\w+", (inspect.getdoc(function) or "").partition("Raises")[2])
    errors = [f"`{each}`" for each in dict.fromkeys(named) if each in trinitylake_core.__all__ and each not in known]
    return f"Raises {', '.join(errors)}." if errors else ""


def _summary(what: Any) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join(_doc(what).partition("\n\n")[0].split())


def _signature(function: Callable[..., Any], untyped: Container[str] = (), hidden: Iterable[str] = ()) -> str:
    signature = inspect.signature(function)
    hidden = {"self", "cls", *hidden}
    shown_parameters = [each for each in signature.parameters.values() if each.name not in hidden]
    parts: list[str] = []
    for each in shown_parameters:
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        if each.kind is each.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        if each.annotation is _EMPTY or each.name in untyped or each.default not in (_EMPTY, None):
            kind, equals = "", "="
        else:
            kind, equals = f": {_annotation(each.annotation)}", " = "
        if each.default is None:
            kind = kind.removesuffix("?")
        default = "" if each.default is _EMPTY else f"{equals}{each.default!r}"
        parts.append(f"{star}{each.name}{kind}{default}")
    returned = signature.return_annotation
    returns = "" if returned in (_EMPTY, None, "None") else f" -> {_annotation(returned)}"
    line = f"({', '.join(parts)}){returns}"
    return line if len(line) < 110 else "(\n        " + ",\n        ".join(parts) + f"\n    ){returns}"


def _keywords(options: type) -> dict[str, Any]:
    return {
        name: kind for each in reversed(options.__mro__) for name, kind in getattr(each, "__annotations__", {}).items()
    }


def _annotation(annotation: Any) -> str:
    """Return a type as the page shows it: ``int?`` is ``int | None``."""
    text = getattr(annotation, "__forward_arg__", annotation)
    shown = text if isinstance(text, str) else inspect.formatannotation(text)
    return _OPTIONAL.sub(r"\1?", shown)


def _errors(error: type[Exception], public: set[type], depth: int) -> Iterator[str]:
    summary = (inspect.getdoc(error) or "").partition("\n\n")[0]
    yield f"{'    ' * depth}* `{error.__name__}`: {_prose(summary)}".replace("\n", " ")
    for each in sorted(error.__subclasses__(), key=lambda kind: kind.__name__):
        if each in public:
            yield from _errors(each, public, depth + 1)


# -- text ------------------------------------------------------------------------------------------------


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: arguments and attributes become a list."""
    text = _ROLE.sub(r"`\1`", _LITERAL.sub(r"`\1`", docstring))
    lines: list[str] = []
    inside = ""
    for line in text.splitlines():
        if line in _LISTS:
            inside = _LISTS[line]
            lines += ["", f"*{inside}*", ""]
        elif inside and (match := _ENTRY.match(line)):
            name = f"`{match[1]}`" if inside != "Raises" and match[1] else match[1]
            lines.append(f"* {name}{match[2]}")
        elif inside and line.startswith(" "):
            lines.append(f"  {line.strip()}")
        else:
            inside = inside if not line else ""
            lines.append(line)  # an example keeps its indentation
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _doc(what: Any) -> str:
    return _prose(inspect.getdoc(what) or "")


def _escaped(text: str) -> str:
    """Return a help text as Markdown, without what a version or a time may be: the page says that once."""
    return _TIMES.sub("", text.replace(f": {MEANING}", "")).replace("*", r"\*").replace("<", "&lt;")


PAGES: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "commands": commands,
    "configuration": configuration,
    "library": library,
    "jobs": jobs,
}
"""The pages, and what yields the lines of each."""


if __name__ == "__main__":
    for page in PAGES:
        page_path(page).write_text(make_page(page), encoding="utf-8")
