"""The codec's tests run on both of its forms: the compiled extension and the plain .py file."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import pyspark_kafkalog.arrow
from pyspark_kafkalog.arrow import decode as installed_decode
from pyspark_kafkalog.arrow import encode as installed_encode
from tests.support.present import present

PACKAGE = Path(pyspark_kafkalog.arrow.__file__).parent


def plain(name: str) -> ModuleType:
    """The module's .py file, loaded beside the installed (compiled) one."""
    spec = importlib.util.spec_from_file_location(f"plain_{name}", PACKAGE / f"{name}.py")
    module = importlib.util.module_from_spec(present(spec))
    present(present(spec).loader).exec_module(module)
    return module


DECODERS = {"installed": installed_decode, "plain": plain("decode")}
ENCODERS = {"installed": installed_encode, "plain": plain("encode")}


@pytest.fixture(params=DECODERS)
def decode(request: pytest.FixtureRequest) -> ModuleType:
    return DECODERS[request.param]


@pytest.fixture(params=ENCODERS)
def encode(request: pytest.FixtureRequest) -> ModuleType:
    return ENCODERS[request.param]
