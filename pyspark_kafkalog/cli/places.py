"""Places in partitions as arguments: --offset, --until, --to and --before (`source.places`)."""

import click

from pyspark_kafkalog.source.places import Place, parse_place

WAYS = "beginning, end, N, -N, a time, @MS or '-10 minutes'"


class PlaceType(click.ParamType):  # type: ignore[type-arg]
    """Reads a Place from the command line."""

    name = "place"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "PLACE"

    def convert(
        self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        place = value if isinstance(value, Place) else parse_place(value)
        if place is None:
            self.fail(f"{value!r} is no place in a topic: give {WAYS}.", param, ctx)
        return place


PLACE = PlaceType()
