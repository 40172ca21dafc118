"""Avro's tests run on both forms of its inner loop: the extension and the plain .py file."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pyspark_kafkalog.decoding
from pyspark_kafkalog.decoding import avro as installed_avro
from pyspark_kafkalog.decoding.registry import schema_by_id
from tests.pyspark_kafkalog.decoding.registry_stub import Registry, serving
from tests.support.present import present

PACKAGE = Path(pyspark_kafkalog.decoding.__file__).parent
_LOOP = "pyspark_kafkalog.decoding.avro_rows"


def _plain(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"plain_{name}", PACKAGE / f"{name}.py")
    module = importlib.util.module_from_spec(present(spec))
    sys.modules[present(spec).name] = module
    present(present(spec).loader).exec_module(module)
    return module


def _avro_on_the_plain_loop() -> ModuleType:
    installed = sys.modules[_LOOP]
    sys.modules[_LOOP] = _plain("avro_rows")
    try:
        return _plain("avro")
    finally:
        sys.modules[_LOOP] = installed


FORMS = {"installed": installed_avro, "plain": _avro_on_the_plain_loop()}


@pytest.fixture(params=FORMS)
def avro(request: pytest.FixtureRequest) -> ModuleType:
    return FORMS[request.param]


@pytest.fixture
def registry() -> Iterator[Registry]:
    schema_by_id.cache_clear()
    with serving() as running:
        yield running
