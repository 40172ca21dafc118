"""Avro's tests run on both forms of its inner loop: the extension and the plain .py file."""

import importlib.util
import sys
from pathlib import Path

import pytest

import pyspark_kafkalog.decoding
from pyspark_kafkalog.decoding import avro as installed_avro
from pyspark_kafkalog.decoding.registry import schema_by_id
from tests.pyspark_kafkalog.decoding.registry_stub import serving

PACKAGE = Path(pyspark_kafkalog.decoding.__file__).parent
_LOOP = "pyspark_kafkalog.decoding.avro_rows"


def _plain(name):
    spec = importlib.util.spec_from_file_location(f"plain_{name}", PACKAGE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _avro_on_the_plain_loop():
    installed = sys.modules[_LOOP]
    sys.modules[_LOOP] = _plain("avro_rows")
    try:
        return _plain("avro")
    finally:
        sys.modules[_LOOP] = installed


FORMS = {"installed": installed_avro, "plain": _avro_on_the_plain_loop()}


@pytest.fixture(params=FORMS)
def avro(request):
    return FORMS[request.param]


@pytest.fixture
def registry():
    schema_by_id.cache_clear()
    with serving() as running:
        yield running
