"""Commits to an Iceberg table that are tried on one state of it, or not at all.

Called by iceberg.py and iceberg_upkeep.py.
"""

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId

# Set for the time of a commit, not in the catalog: no unfenced retries.
IN_MEMORY = {"commit.retry.num-retries": "0"}


def require_unaltered(table: Table, transaction: Transaction) -> None:
    """Has a commit fail where the table's columns or partitions are others by then."""
    # Another schema or partition spec makes no snapshot. pyiceberg has no public way to say so.
    schema = {"current-schema-id": table.metadata.current_schema_id}
    spec = {"default-spec-id": table.metadata.default_spec_id}
    unaltered = (
        AssertCurrentSchemaId.model_validate(schema),
        AssertDefaultSpecId.model_validate(spec),
    )
    transaction._apply((), unaltered)


def commit_transaction(table: Table, transaction: Transaction) -> None:
    """Commits, and deletes the manifests of a commit that is not there.

    pyiceberg deletes them whenever the catalog says that others were faster. It says so, too, where
    a gateway had asked it twice and kept the first answer to itself: then they are the table's.
    """
    producers, transaction._snapshot_producers = transaction._snapshot_producers, []
    try:
        transaction.commit_transaction()
    except CommitFailedException:
        found = table.catalog.load_table(table.name()).metadata
        for producer in producers:
            if found.snapshot_by_id(producer._snapshot_id) is None:
                producer._clean_all_uncommitted()
        raise
