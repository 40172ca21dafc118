from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.protocol.properties_text import format_properties, parse_properties


def test_reads_what_java_reads() -> None:
    text = (
        "# comment\n! another\n\n"
        "a=1\n  b = 2 \nc:3\nd 4\ne\n"
        "long=one,\\\n    two\n"
        "path=C:\\\\data\n"
        "unicode=\\u00e9\\t|\n"
        "with\\ space\\=x=y=z\r\n"
        "a=last\n"
    )
    assert parse_properties(text) == {
        "a": "last",
        "b": "2 ",
        "c": "3",
        "d": "4",
        "e": "",
        "long": "one,two",
        "path": "C:\\data",
        "unicode": "é\t|",
        "with space=x": "y=z",
    }


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXTS.filter(bool), TEXTS))
def test_reads_back_what_it_writes(entries: dict[str, str]) -> None:
    assert parse_properties(format_properties(entries)) == entries
