"""What MkDocs asks while it builds the site: pages and tables made from the code.

A page has a comment `<!-- made: NAME -->` where one of `TABLES` goes. ARCHITECTURE,
CHANGELOG and CONTRIBUTING, which a forge shows at the root, become pages as they are.
No MkDocs is imported before it builds, so that tests read the tables without it.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parents[1]
# The benchmarks are no part of what is installed.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

ROOT_PAGES = {
    "ARCHITECTURE.md": "design.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
CHARTS = ("results.svg", "growth.svg")
_MADE = re.compile(r"<!-- made: (.+?) -->")
_PROPERTY_CELL = re.compile(r"<td><code>[\w.*]+</code></td>")
_EXAMPLES = re.compile(r"^ *\x08\n(.*?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
_EMPTY = "none"


def read_options() -> str:
    from pyspark_kafkalog.source import option_table

    rows = [(option, option.meaning) for option in option_table.READ_OPTIONS]
    rows += [
        (option, f"Streams. {option.meaning}") for option in option_table.STREAM_OPTIONS
    ]
    rows += [(option, option.meaning) for option in option_table.OPTIONS_WITHOUT_EFFECT]
    return _options(rows)


def write_options() -> str:
    from pyspark_kafkalog.source.option_table import ENGINE_OPTIONS, WRITE_OPTIONS

    return _options(
        (option, option.meaning) for option in (*WRITE_OPTIONS, *ENGINE_OPTIONS)
    )


def loading_write_options() -> str:
    from pyspark_kafkalog.warehouse.sink.writer import OPTIONS

    rows = [(option.name, option.default, option.meaning) for option in OPTIONS]
    rows.append(
        ("checkpointLocation", "", "Spark's own; read to know a micro-batch's offsets.")
    )
    rows.append(
        ("kafka.*", "", "Those of the read, to ask whether a topic was created again.")
    )
    return _table("Option", rows)


def load_arguments() -> str:
    """Defaults are those of `load`, meanings the docstrings of LoadArguments."""
    from pyspark_kafkalog.warehouse.load import load
    from pyspark_kafkalog.warehouse.options import LoadArguments

    meanings = field_docstrings(LoadArguments)
    defaults = inspect.signature(load).parameters
    rows = [
        (name, _shown(defaults[name].default), said) for name, said in meanings.items()
    ]
    rows.append(
        ("dry_run", "`False`", "Return the plan, a `LoadPlan`, and change nothing.")
    )
    rows.append(
        ("progress", "`False`", "Bars, or lines in a log; or a function that is told.")
    )
    return _table("Argument", rows)


def client_properties() -> str:
    from pyspark_kafkalog.client.config import ClientConfig

    meanings = field_docstrings(ClientConfig)
    rows = []
    for field in fields(ClientConfig):
        is_needed = field.name == "bootstrap_servers"
        default = (
            "must be set" if is_needed else _property_value(field.name, field.default)
        )
        rows.append(
            (
                f"kafka.{field.name.replace('_', '.')}",
                default,
                _by_property(meanings[field.name]),
            )
        )
    return _table("Property", rows)


def broker_properties() -> str:
    """Those that have an effect; DescribeConfigs lists Kafka's others, too."""
    from broker.config.broker import BROKER_KEYS
    from broker.config.dynamic import DYNAMIC_BROKER_CONFIGS

    return _table(
        "Property",
        [
            (
                key.name,
                _rendered(key),
                f"{'↻ ' * (key.name in DYNAMIC_BROKER_CONFIGS)}{key.doc}",
            )
            for key in sorted(BROKER_KEYS.values(), key=lambda key: key.name)
        ],
    )


def topic_properties() -> str:
    from broker.config.log import LOG_KEYS

    rows = []
    for key in sorted(LOG_KEYS.values(), key=lambda key: key.name):
        of_broker = "".join(
            f" Else the broker's `{name}`." for name, _ in key.synonyms[:1]
        )
        rows.append((key.name, _rendered(key), key.doc + of_broker))
    return _table("Property", rows)


def _rendered(key: Any) -> str:
    text = key.render(key.default)
    return f"`{text}`" if text else ""


def results() -> str:
    from benchmarks.docs_page import section

    return section(charts="../benchmarks/results/")


TABLES: Mapping[str, Callable[[], str]] = {
    "options of a read": read_options,
    "options of a write": write_options,
    "options of a loading write": loading_write_options,
    "arguments of load": load_arguments,
    "properties of the client": client_properties,
    "properties of a broker": broker_properties,
    "properties of a topic": topic_properties,
    "results": results,
}


def field_docstrings(kind: type) -> dict[str, str]:
    """What stands under each annotated field of a class, on one line; may be empty."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    name = None
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(
            statement.target, ast.Name
        ):
            name = statement.target.id
            found[name] = ""
        elif (
            name
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        ):
            found[name] = " ".join(str(statement.value.value).split())
        else:
            name = None
    return found


def _options(rows: Iterable[tuple[Any, str]]) -> str:
    return _table(
        "Option",
        [
            (
                option.name,
                option.default,
                meaning if option.is_sparks else f"★ {meaning}",
            )
            for option, meaning in rows
        ],
    )


def _table(heading: str, rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [f"| {heading} | Default | |", "| --- | --- | --- |"]
    lines += [
        f"| `{name}` | {default or _EMPTY} | {meaning.replace('|', chr(92) + '|')} |"
        for name, default, meaning in rows
    ]
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    return "" if default in (None, ()) else f"`{default!r}`"


def _property_value(name: str, default: Any) -> str:
    """A setting as a user would write it."""
    from pyspark_kafkalog.client.config import Secret

    if name == "acks":
        return "`all`"
    if default is None or isinstance(default, Secret):
        return ""
    if isinstance(default, Enum):
        return f"`{default.name.lower()}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    text = ",".join(default) if isinstance(default, tuple) else str(default)
    return f"`{text}`" if text else ""


def _by_property(said: str) -> str:
    """Fields of other settings by their names as properties."""
    return re.sub(
        r"`([a-z]+(?:_[a-z]+)+)`", lambda found: f"`{found[1].replace('_', '.')}`", said
    )


def made(markdown: str) -> str:
    """A page with its tables, and charts where the site has them."""
    with_tables = _MADE.sub(lambda found: TABLES[found[1]](), markdown)
    return with_tables.replace("](../benchmarks/results/", "](results/")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return made(markdown)


def on_pre_build(**_: Any) -> None:
    """Examples of commands become blocks of code."""
    from pyspark_kafkalog.cli.entry import command_tree

    for command in _all_commands(command_tree()):
        command.help = _EXAMPLES.sub(_as_block, command.help or "")


def _all_commands(command: Any) -> Iterator[Any]:
    yield command
    for name in (
        command.list_commands(None) if hasattr(command, "list_commands") else ()
    ):
        yield from _all_commands(command.get_command(None, name))


def _as_block(found: re.Match[str]) -> str:
    return f"```text\n{dedent(found[1]).rstrip()}\n```\n"


def on_page_content(html: str, **_: Any) -> str:
    """Names of properties break at their dots; click's mark of no default goes."""
    html = html.replace("<code>Sentinel.UNSET</code>", "")
    return _PROPERTY_CELL.sub(lambda found: found[0].replace(".", ".<wbr>"), html)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_as_page(text)))
    for name in CHARTS:
        source = str(ROOT / "benchmarks" / "results" / name)
        files.append(File.generated(config, f"results/{name}", abs_src_path=source))
    return files


def _as_page(text: str) -> str:
    """Links of a page at the root, as seen from docs/."""
    text = text.replace("](docs/", "](")
    for source, page in ROOT_PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text
