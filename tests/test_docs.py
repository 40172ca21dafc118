"""README and the documentation are contracts: their snippets run, and what is made is whole.

The Python of a page is one program, its commands are one shell script. A comment before a block
says what else is to be done with it: `<!-- not run: REASON -->`, or `<!-- test: pytest -->` for a
file of tests. What is not run is listed here, and has no wrong syntax at least.
"""

import importlib.metadata
import json
import os
import re
import runpy
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import click
import pyspark
import pytest

import pyspark_kafkalog
import pyspark_kafkalog.functions
from pyspark_kafkalog.cli.entry import WORDS
from tests.support.present import present

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {"README": ROOT / "README.md", **{path.stem: path for path in sorted(DOCS.glob("*.md"))}}
TIMEOUT_S = 300
SMALL_SPARK = (
    "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
    "--conf spark.sql.shuffle.partitions=2 pyspark-shell"
)

LANGUAGES = {"python", "bash", "text", "ini", "properties", "dockerfile", "json", "yaml"}
NOT_RUN = {
    ("deploy", "bash", "tests/test_install.py does the same with a wheel"),
    ("deploy", "bash", "tests/test_install.py does the same"),
    ("deploy", "python", "needs Airflow"),
    ("page", "bash", "tests/pyspark_kafkalog/cli/test_ui.py does the same"),
    ("page", "bash", "needs a registry"),
    ("serve", "bash", "it runs until it is stopped"),
    ("pipelines", "bash", "tests/spark/test_pipeline.py runs this page"),
    ("pipelines", "python", "tests/spark/test_pipeline.py runs this page"),
}
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|test): (?P<why>[^\n]+?) -->\n)?"
    r"(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)

hooks: Any = SimpleNamespace(**runpy.run_path(str(DOCS / "hooks.py")))


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str
    mark: str | None
    why: str | None


BLOCKS = [
    Block(page, each["language"], dedent(each["text"]), each["mark"], each["why"])
    for page, path in PAGES.items()
    for each in _BLOCK.finditer(path.read_text(encoding="utf-8"))
]


def program(page: str, language: str, mark: str | None = None) -> str:
    found = [block for block in BLOCKS if block.page == page and block.language == language]
    return "\n".join(block.text for block in found if block.mark == mark)


def pages(language: str, mark: str | None = None) -> list[str]:
    return [page for page in PAGES if program(page, language, mark)]


def environment(**more: str) -> dict[str, str]:
    """The scripts of this interpreter's environment come first on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The one program that runs all pages with Python."""
    folder = tmp_path_factory.mktemp("driver")
    with (
        (folder / "stderr").open("w+") as said,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.docs_program"],
            cwd=folder,
            env=environment(PYSPARK_SUBMIT_ARGS=SMALL_SPARK),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        yield process
        present(process.stdin).close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.spark
@pytest.mark.parametrize(
    "page",
    [
        page if page in ("loading", "streams") else pytest.param(page, marks=pytest.mark.slow)
        for page in pages("python")
    ],
)
def test_the_python_of_a_page_runs(
    page: str, driver: subprocess.Popen[str], tmp_path: Path
) -> None:
    request = {"page": f"{page}.md", "folder": str(tmp_path), "program": program(page, "python")}
    present(driver.stdin).write(json.dumps(request) + "\n")
    present(driver.stdin).flush()
    ready, _, _ = select.select([present(driver.stdout)], [], [], TIMEOUT_S)
    if not ready:
        driver.kill()
    answer = json.loads(
        present(driver.stdout).readline() or '{"error": "the program of all pages ended"}'
    )
    assert answer["error"] is None, answer["error"]


@pytest.mark.parametrize("page", pages("python", "test"))
def test_the_tests_of_a_page_pass(page: str, tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(program(page, "python", "test"), encoding="utf-8")
    # Installed, the fixtures are there by themselves; a tree that is not gets them here.
    plugins = ["-p", "no:cacheprovider"]
    if not is_installed():
        plugins += ["-p", "pyspark_kafkalog.testing"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "test_page.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def is_installed() -> bool:
    found = importlib.metadata.entry_points(group="pytest11")
    return any(each.value == "pyspark_kafkalog.testing" for each in found)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", pages("bash"))
def test_the_commands_of_a_page_run_in_a_shell(page: str, tmp_path: Path) -> None:
    # One command changes Spark's home: that is a copy, in links.
    home = tmp_path / "spark"
    shutil.copytree(Path(pyspark.__file__).parent, home, copy_function=os.symlink)
    with pyspark_kafkalog.EmbeddedBroker() as broker:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", program(page, "bash")],
            cwd=tmp_path,
            env=environment(SERVERS=broker.bootstrap_servers, SPARK_HOME=str(home)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    if check := AFTERWARDS.get(page):
        check(tmp_path, done.stdout)


def check_readme(folder: Path, printed: str) -> None:
    assert printed.splitlines()[-1] == "/home"


def check_command_line(folder: Path, printed: str) -> None:
    assert "/home" in printed
    assert len(list((folder / "warehouse").glob("part-clicks-*.parquet"))) == 1


def check_serve(folder: Path, printed: str) -> None:
    assert printed.splitlines()[-2:] == [
        f"orders: into delta:{folder}/lake/orders",
        f"shops: into parquet:{folder}/lake/{{topic}}",
    ]


def check_tuning(folder: Path, printed: str) -> None:
    archive = folder / "spark" / "python" / "lib" / "pyspark.zip"
    assert not archive.is_symlink()
    (py4j,) = archive.parent.glob("py4j-*.zip")
    assert not py4j.is_symlink()


AFTERWARDS = {
    "README": check_readme,
    "command-line": check_command_line,
    "serve": check_serve,
    "tuning": check_tuning,
}


def test_what_is_not_run_is_known_and_has_no_wrong_syntax() -> None:
    not_run = [block for block in BLOCKS if block.mark == "not run"]
    assert {(block.page, block.language, block.why) for block in not_run} == NOT_RUN
    for block in not_run:
        if block.language == "python":
            compile(block.text, block.page, "exec")
        else:
            subprocess.run(["bash", "-n", "-c", block.text], check=True)


def test_each_block_says_its_language() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES


@pytest.mark.parametrize("page", PAGES)
def test_code_fits_the_page(page: str) -> None:
    wide = [
        line
        for block in BLOCKS
        for line in block.text.splitlines()
        if block.page == page and len(line) > (100 if page == "README" else 88)
    ]
    assert wide == []


def test_readme_fits_a_first_look() -> None:
    assert len(PAGES["README"].read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        made = DOCS / target if page != "README" else ROOT / target
        is_made = made.parent == DOCS and made.name in hooks.ROOT_PAGES.values()
        assert "://" in target or is_made or made.exists(), target


def rows(table: Any) -> list[Any]:
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def test_the_keys_of_a_file_of_loads_and_its_metrics_are_told_of() -> None:
    from pyspark_kafkalog.warehouse.service import keys, metrics
    from pyspark_kafkalog.warehouse.service.figures import Figures

    text = PAGES["serve"].read_text(encoding="utf-8")
    known = {*keys.LOAD_KEYS, *keys.SERVICE_KEYS}
    assert known <= set(re.findall(r"`([a-z-]+)`", text))
    for metric in metrics.LoadCollector(Figures()).collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        assert f"`{name}`" in text


def test_the_table_of_options_is_complete() -> None:
    from pyspark_kafkalog.source import option_table, options
    from pyspark_kafkalog.warehouse.sink import writer

    known = {*options._SOURCE_OPTIONS, *options._STREAM_OPTIONS, *options._NO_EFFECT}
    assert set(rows(hooks.read_options())) == known
    known = {*options._SINK_OPTIONS, *options._ENGINE_OPTIONS}
    assert set(rows(hooks.write_options())) == known
    made = rows(hooks.loading_write_options())
    assert set(made) == {*option_table.names(writer.OPTIONS), "checkpointLocation", "kafka.*"}


def test_the_table_of_arguments_is_complete() -> None:
    import inspect

    from pyspark_kafkalog import load

    named = {"spark", "name", "target", "options"}
    assert set(rows(hooks.load_arguments())) == set(inspect.signature(load).parameters) - named


def test_the_table_of_properties_is_complete() -> None:
    from pyspark_kafkalog.client.config import ClientConfig

    table = hooks.client_properties()
    names = [f"kafka.{field.name.replace('_', '.')}" for field in fields(ClientConfig)]
    assert rows(table) == names
    assert "|  |" not in table, "a property without a word"


def test_the_tables_of_brokers_and_topics_are_complete() -> None:
    from broker.config.broker import BROKER_KEYS
    from broker.config.log import LOG_KEYS

    assert rows(hooks.broker_properties()) == sorted(key.name for key in BROKER_KEYS.values())
    assert rows(hooks.topic_properties()) == sorted(key.name for key in LOG_KEYS.values())


def test_each_table_is_on_a_page() -> None:
    wanted = {name for path in DOCS.glob("*.md") for name in hooks._MADE.findall(path.read_text())}
    assert wanted == set(hooks.TABLES)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings for errors."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    site = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return site


@pytest.mark.slow
def test_the_site_has_each_command(site: Path) -> None:
    from pyspark_kafkalog.cli.entry import command_tree

    text = (site / "commands.html").read_text(encoding="utf-8")
    tree = command_tree()
    wanted = set(WORDS)
    for word in WORDS:
        command = tree.get_command(click.Context(tree), word)
        wanted |= {f"{word}-{each}" for each in getattr(command, "commands", {})}
    sections = set(re.findall(r'<h\d id="kafkalog-([\w-]+)"', text))
    assert wanted <= sections, wanted - sections


@pytest.mark.slow
def test_the_site_has_each_public_name(site: Path) -> None:
    text = (site / "python.html").read_text(encoding="utf-8")
    wanted = {name for name in pyspark_kafkalog.__all__ if not name.startswith("__")}
    wanted |= set(pyspark_kafkalog.functions.__all__)
    headings = set(re.findall(r'id="pyspark_kafkalog\.[\w.]*?(\w+)"', text))
    assert wanted <= headings, wanted - headings


@pytest.mark.slow
def test_the_site_has_nothing_of_what_makes_it(site: Path) -> None:
    made_by = [path for path in site.rglob("*") if path.suffix in (".py", ".pyc", ".toml", ".md")]
    assert made_by == []


@pytest.mark.slow
def test_the_site_asks_nobody_else(site: Path) -> None:
    """No font, script or style from another server."""
    loads = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(https?:[^"]+)"')
    for page in site.rglob("*.html"):
        assert loads.findall(page.read_text(encoding="utf-8")) == [], page.name
