"""Writes that become visible as a whole: transactions of tasks, a decision, then their ends.

    plan     the driver takes the lead of the prefix (a new epoch of `<prefix>-driver`: whoever led
             before decides nothing more), ends what was decided and not ended, and aborts what
             dead tasks left open
    write    each task writes in a transaction of `<prefix>-task-<partition>-<attempt>-<lead>`, and
             leaves it open
    commit   the decision, one record in a transaction of the lead, names the tasks' transactions;
             then they are committed. From the decision on, whoever plans next does the same.
    abort    what is in no decision is aborted; where the decisions are lost, only what the lead, by
             the state of its own transaction, cannot have decided

Spark runs a micro-batch again whose commit it did not note down: its tasks write anew, and `commit`
finds a decision with its number. It is the same micro-batch where it was planned from the same
(`checkpoint.Planned`), or where its rows are the same (the digests of its tasks); an older
checkpoint gives its number to other rows, which PrefixInUseError refuses. So it does a later number
from a checkpoint in which the decided micro-batch ends elsewhere. What became of each
transaction that the decision names is then asked of its coordinator, which may have aborted it
after its timeout, or else read from the log. Committed ones are not written again; aborted ones are
replaced by new transactions with the same rows, told by their digests; where the rows were cut in
another way and some are committed, nothing can be replaced, and PartlyCommittedError says what is
there.

A prefix that was used is never taken for a new one: its topic of decisions says so before its first
transactional id is known to a coordinator. What cannot be found out: that the topic was lost when
the prefix rested for longer than `transactional.id.expiration.ms` (a week), or that it lost only
its last records, by an unclean election of its leader.

A process may stand still between any two requests while another run takes the lead, writes and
decides. What it does then must not end what the other has decided. So transactions are aborted by
who they were before the lead was seen to be ours (`abort_and_fence`), and the ids of tasks differ
from lead to lead: a task begins by its id alone, which aborts what is open under it, unless the id
is a new one (`begin_new`). What is left: a task that stands still between its look and its begin
while a twin with the same partition and attempt, in a stage that Spark submits again, writes and is
decided under the same old id. Every condition that requests of the protocol know (the epoch of
InitProducerId, the end of EndTxn 5) takes the second of two who saw the same for a repetition of
the first; only a producer id differs for sure, which stays with its transactional id. Ids that are
never used again would be told apart, but brokers keep each for a week. The write of that twin is
aborted in part and says so (TransactionAbortedError); the same again writes what is missing.

Spark makes plan, tasks and commit in processes of their own. What is carried from one to the next
is Lead and WrittenTransaction. Blocking; one thread at a time.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn

from kafka.errors import (
    IncompatibleBrokerVersion,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailedError,
)
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig, Isolation
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import (
    EMPTY,
    ENDED,
    FENCED,
    ONGOING,
    ProducerIdentity,
    TransactionDescription,
    Transactions,
    ended_by_commit,
)
from pyspark_kafkalog.errors import (
    CommitUnfinishedError,
    DecisionsLostError,
    DeliveryError,
    InvalidOptionError,
    KafkalogError,
    PartlyCommittedError,
    PrefixInUseError,
    TransactionAbortedError,
    TransactionError,
    UnknownTopicError,
)
from pyspark_kafkalog.source.checkpoint import NOT_KNOWN, Planned
from pyspark_kafkalog.source.decisions import (
    Decision,
    DecisionLog,
    UncertainDecisionError,
    WrittenTransaction,
    decisions_topic,
)
from pyspark_kafkalog.source.python_worker import kept_cluster

BATCH_QUERY = "batch query"
"""The owner of decisions of `df.write`, which has no query id."""
NO_BATCH = -1
"""The number of what is no micro-batch."""

_LEAD_TIMEOUT_MS = 60_000
"""A decision takes milliseconds; the lead's transaction is open no longer (nor longer than those of
tasks: brokers may allow less)."""
_LEADS_TOLD_APART = 16
"""How many epochs of the lead have ids of their own for tasks (a lead that resigned has had two);
as many ids for each task are in use, too."""
_ABORTED = (*FENCED, InvalidTxnStateError, TransactionAbortableError)
"""What brokers say to who writes in a transaction that has been ended. The latter two where its
epoch is the newest still: before transactions of version 2, whoever aborts fences a moment later.
"""
_MOST_NAMED = 5
_OTHER_BATCH_WAYS_ON = (
    "Go on with the newest checkpoint, or choose another prefix, and expect records twice."
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lead:
    """The right to decide for a prefix, until another takes it; and whose the prefix is by now."""

    producer: ProducerIdentity
    owner: str | None


@dataclass(slots=True)
class _Outcomes:
    """What became of a decision's transactions."""

    committed: list[WrittenTransaction] = field(default_factory=list)
    aborted: list[WrittenTransaction] = field(default_factory=list)
    unknown: list[WrittenTransaction] = field(default_factory=list)

    @property
    def all_committed(self) -> bool:
        return not (self.aborted or self.unknown)

    def all_gone(self, decision: Decision) -> bool:
        """Whether nothing is to be seen of rows that were decided: as if there were no decision."""
        return bool(self.aborted) and not (self.committed or self.unknown or decision.settled)


class TransactionalWrites:
    """What plan, tasks and commit do for one prefix, each with the connections of its worker."""

    def __init__(self, client: ClientConfig, prefix: str) -> None:
        # What is read are decisions and markers, also those behind an open transaction.
        self._client = replace(client, isolation_level=Isolation.READ_UNCOMMITTED)
        self._prefix = prefix
        self._lead_timeout_ms = min(_LEAD_TIMEOUT_MS, client.transaction_timeout_ms)

    def take_lead(self, owner: str | None) -> Lead:
        """Becomes the only one who may decide; ends and clears away what was left behind.

        `owner` is who is going to write, if that is known already. Raises PrefixInUseError where
        the prefix is another's, and DecisionsLostError where it was used and the topic does not
        say so, before anything is touched.
        """
        with self._cluster() as cluster:
            transactions, log = Transactions(cluster), DecisionLog(cluster, self._prefix)
            log.create()
            log.check_policy()
            newest = log.newest()
            if newest is None and not log.has_begun:
                self._begin_use(transactions, log)
            if owner is not None:
                self._check_owner(newest, owner)
            leader = transactions.begin(f"{self._prefix}-driver", self._lead_timeout_ms)
            newest = self._finish_newest(transactions, log)
            self._clear(transactions, leader, log)
            return Lead(leader, None if newest is None else newest.owner)

    @contextmanager
    def task(self, lead: Lead, owner: str, partition: int, attempt: int) -> "Iterator[TaskWrite]":
        """A task's transaction, which begins when the task says so and stays open at the end.

        It is aborted where the task raises. Raises PrefixInUseError before anything is written.
        """
        if lead.owner is not None:
            self._check_owner(Decision(lead.owner, NO_BATCH, ()), owner)
        with self._cluster() as cluster:
            transactions = Transactions(cluster)

            def begin() -> ProducerIdentity:
                return self._begin_task(transactions, lead, partition, attempt)

            write = TaskWrite(cluster, transactions, begin, self._client.transaction_timeout_ms)
            try:
                yield write
            except BaseException as error:
                if not _is_from(error, FENCED):
                    write.abort()
                if _is_from(error, _ABORTED):
                    # By another run, or by a coordinator that has waited for too long.
                    self._check_lead(transactions, lead)
                    raise TransactionAbortedError(
                        f"The transaction {write.name} was aborted while its task wrote; nothing "
                        f"of it is visible. {self._why_aborted()}"
                    ) from error
                raise

    def commit(
        self,
        lead: Lead | None,
        owner: str,
        batch: int,
        written: Sequence[WrittenTransaction],
        planned: Planned = NOT_KNOWN,
    ) -> None:
        """Makes a write visible, once; what is in the way is aborted.

        `planned` says what the micro-batch was planned from, as far as that is known. A write
        without tasks has no `lead`, and may have no owner (""). Raises PrefixInUseError,
        TransactionAbortedError, PartlyCommittedError, DecisionsLostError; CommitUnfinishedError
        where this write is decided, or may be. A commit of the same batch goes on from there.
        """
        with self._cluster() as cluster:
            transactions, log = Transactions(cluster), DecisionLog(cluster, self._prefix)
            newest = self._known(log)
            wanted, settled = tuple(written), tuple[str, ...]()
            is_replaced = False
            is_next = batch != NO_BATCH and (newest is None or newest.batch < batch)
            if newest is not None:
                if owner:
                    self._check_owner(newest, owner)
                self._check_order(newest, batch, planned)
                outcomes = self._outcomes(newest, cluster, transactions, log)
                wanted = self._not_there(newest, outcomes, batch, planned.digest, written)
                ends_elsewhere = newest.batch == batch and planned.end != newest.end
                is_replaced = ends_elsewhere or not outcomes.all_committed
                if is_replaced:
                    settled = (*newest.settled, *(t.digest for t in outcomes.committed))
                unwanted = [t.producer for t in written if t not in newest and t not in wanted]
                transactions.end_all(unwanted, commit=False)
            if lead is None:
                return
            # What is left of a decision would be missed for ever, where no rows replace it. And a
            # copy of the checkpoint may give the number of a micro-batch without rows to others.
            if wanted or is_replaced or is_next:
                self._check_open(transactions, lead, wanted)
                record_count = sum(transaction.record_count for transaction in written)
                plan = planned.digest, planned.end
                decision = Decision(owner, batch, wanted, record_count, settled, *plan)
                self._carry_out(decision, lead, cluster, transactions, log)
            # Also where all was there before: twins of its tasks may have begun.
            try:
                self._clear(transactions, self._resign(transactions, lead), log)
            except (*FENCED, PrefixInUseError):
                _log.warning("Another run took over when this one had committed.")
            except (KafkaError, KafkalogError) as error:
                _log.warning("Attempts that this write replaced may be open still: %s", error)

    def _carry_out(
        self,
        decision: Decision,
        lead: Lead,
        cluster: Cluster,
        transactions: Transactions,
        log: DecisionLog,
    ) -> None:
        """Decides, and commits what is decided."""
        try:
            decision = log.decide(decision, transactions, lead.producer)
        except UncertainDecisionError as error:
            raise self._uncertain(error.__cause__) from error
        except (KafkaError, DeliveryError) as error:
            if _is_from(error, _ABORTED):
                raise self._not_decided(error) from error
            raise
        try:
            outcomes = self._outcomes(decision, cluster, transactions, log)
        except (KafkaError, KafkalogError) as error:
            raise self._unfinished(error) from error
        if not outcomes.all_committed:
            self._raise_aborted(decision, outcomes)

    def abort(self, lead: Lead, written: Sequence[WrittenTransaction]) -> None:
        """Aborts what a failed write left open, unless it is decided.

        Raises DecisionsLostError, and leaves it open, where that cannot be found out: brokers may
        deny the topic for a while only, and what was decided is to be committed then.
        """
        with self._cluster() as cluster:
            transactions, log = Transactions(cluster), DecisionLog(cluster, self._prefix)
            is_undecided = self._is_undecided(transactions, lead)
            newest: Decision | None = None
            try:
                # A decision that is on its way still is there from here on, or never will be.
                resigned = self._resign(transactions, lead)
                try:
                    newest = self._finish_newest(transactions, log)
                    # Not in `_clear` alone: what nobody lists is ended below.
                    log.check_newest()
                except DecisionsLostError:
                    if not is_undecided:
                        raise
                self._clear(transactions, resigned, None)
            except (*FENCED, PrefixInUseError):
                newest = self._known(log)
                log.check_newest()
            undecided = [t.producer for t in written if newest is None or t not in newest]
            transactions.end_all(undecided, commit=False)

    @contextmanager
    def _cluster(self) -> Iterator[Cluster]:
        """A cluster, and the errors of what is done with it in words."""
        try:
            with kept_cluster(self._client) as cluster:
                yield cluster
        except DeliveryError as error:
            if isinstance(error.__cause__, FENCED):
                raise self._replaced(str(error.__cause__)) from error
            raise
        except KafkaError as error:
            raise self._in_words(error) from error

    def _begin_use(self, transactions: Transactions, log: DecisionLog) -> None:
        """Records that the prefix is in use from here on; raises DecisionsLostError where its
        driver's id is known to its coordinator, if the brokers tell (Kafka 3.0)."""
        driver = f"{self._prefix}-driver"
        with suppress(IncompatibleBrokerVersion):
            # Another run may have begun in between: its record is there before its id is known.
            if driver in transactions.describe([driver]):
                self._known(log)
        log.begin()

    def _known(self, log: DecisionLog) -> Decision | None:
        """The newest decision; raises DecisionsLostError where there is not even a beginning."""
        try:
            newest = log.newest()
        except UnknownTopicError as error:
            raise self._lost() from error
        if newest is None and not log.has_begun:
            raise self._lost()
        return newest

    def _finish_newest(self, transactions: Transactions, log: DecisionLog) -> Decision | None:
        """Ends what was decided last and not ended; `commit` looks into what refuses.

        Raises DecisionsLostError as `_known` does.
        """
        newest = self._known(log)
        if newest is None or newest.is_done:
            return newest
        refused = self._commit_all(transactions, newest)
        _log.warning(
            "A driver ended after its decision for the transactionalIdPrefix %s: %d of %d "
            "transactions are committed now.",
            self._prefix,
            len(newest.transactions) - len(refused),
            len(newest.transactions),
        )
        if not refused:
            log.mark_done(newest)
        return newest

    def _commit_all(
        self, transactions: Transactions, decision: Decision
    ) -> Collection[ProducerIdentity]:
        """Commits a decision's transactions; returns those that were ended before, either way.

        Raises what coordinators refuse for another reason: those are open still, and decided.
        """
        refused = transactions.end_all([t.producer for t in decision.transactions], commit=True)
        for error in refused.values():
            if not isinstance(error, ENDED):
                raise error
        return refused.keys()

    def _resign(self, transactions: Transactions, lead: Lead) -> ProducerIdentity:
        """Ends the lead, so that no task of its write begins any more; returns who has it until
        somebody takes it. Raises one of FENCED where another has it."""
        return transactions.abort_and_fence(lead.producer, self._lead_timeout_ms)

    def _is_undecided(self, transactions: Transactions, lead: Lead) -> bool:
        """Whether nothing that is open is decided, whatever became of the topic: the lead's only
        transaction is its decision, and what was decided before it was ended when it began. Not
        where brokers do not tell (before Kafka 3.0), and to be asked before the lead resigns."""
        with suppress(IncompatibleBrokerVersion):
            name = lead.producer.transactional_id
            found = transactions.describe([name]).get(name)
            return found == TransactionDescription(lead.producer, EMPTY)
        return False

    def _clear(
        self, transactions: Transactions, leader: ProducerIdentity, log: DecisionLog | None
    ) -> None:
        """Fences and aborts the transactions of this prefix's tasks that are open.

        Those of a killed run, and of attempts whose twin was faster: readers would wait for them.
        `leader` has the lead, or resigned and nobody took it; raises PrefixInUseError otherwise,
        and TransactionError where the newest decision of `log` was not the one that was ended (None
        where that was looked at, or none can be there).
        """
        task = re.escape(self._prefix) + "-task-[0-9]+-[0-9]+(-[0-9]+)?"
        names = transactions.ongoing(task)
        if not names:
            return
        # A successor's tasks begin when it has the lead, so none of these is a successor's.
        known = transactions.describe(names)
        self._check_leads(transactions.describe([leader.transactional_id]), leader)
        if log is not None:
            log.check_newest()
        for found in known.values():
            if found.state == ONGOING:
                with suppress(*FENCED):
                    timeout_ms = self._client.transaction_timeout_ms
                    transactions.abort_and_fence(found.producer, timeout_ms)

    def _begin_task(
        self, transactions: Transactions, lead: Lead, partition: int, attempt: int
    ) -> ProducerIdentity:
        """Begins under an id under which nothing is open. Raises PrefixInUseError for a task that
        comes too late, of a run that is over.

        Spark counts attempts anew in a stage that it submits again (SPARK-24552), and what a task
        of the first one has written may be what counts. It may be decided by the time that this
        one begins; a new id is not begun then, one that was used before is.
        """
        timeout_ms = self._client.transaction_timeout_ms
        driver, number = lead.producer.transactional_id, lead.producer.epoch % _LEADS_TOLD_APART
        refused = ""
        while True:
            name = f"{self._prefix}-task-{partition}-{attempt}-{number}"
            transactions.locate([driver, name])
            try:
                known = transactions.describe([driver, name])
            except IncompatibleBrokerVersion:
                return transactions.begin(name, timeout_ms)
            self._check_leads(known, lead.producer)
            if name in known and known[name].state == ONGOING:
                attempt += 1
            elif name in known or name == refused:
                return transactions.begin(name, timeout_ms)
            else:
                refused = name
                with suppress(*FENCED):
                    return transactions.begin_new(name, timeout_ms)

    def _check_lead(self, transactions: Transactions, lead: Lead) -> None:
        """Raises PrefixInUseError where another has the lead, if the brokers tell (Kafka 3.0)."""
        with suppress(IncompatibleBrokerVersion):
            known = transactions.describe([lead.producer.transactional_id])
            self._check_leads(known, lead.producer)

    def _check_leads(
        self, known: Mapping[str, TransactionDescription], leader: ProducerIdentity
    ) -> None:
        found = known.get(leader.transactional_id)
        if found is None or found.producer != leader:
            raise self._replaced("its lead is over")

    def _outcomes(
        self, decision: Decision, cluster: Cluster, transactions: Transactions, log: DecisionLog
    ) -> _Outcomes:
        """Commits a decision's transactions, and finds out about those that refuse."""
        found = _Outcomes()
        if decision.is_done:
            found.committed.extend(decision.transactions)
            return found
        refused = self._commit_all(transactions, decision)
        markers_come_until = Deadline(self._client.request_timeout_ms)
        for transaction in decision.transactions:
            if transaction.producer not in refused:
                found.committed.append(transaction)
                continue
            committed = _ended_by_commit(cluster, transaction, markers_come_until)
            if committed is None:
                found.unknown.append(transaction)
            else:
                (found.committed if committed else found.aborted).append(transaction)
        if found.all_committed:
            log.mark_done(decision)
        return found

    def _not_there(
        self,
        newest: Decision,
        outcomes: _Outcomes,
        batch: int,
        planned: str,
        written: Sequence[WrittenTransaction],
    ) -> tuple[WrittenTransaction, ...]:
        """Those of `written` whose rows no decision has made visible."""
        is_repeated = any(transaction in newest for transaction in written)
        is_replayed = newest.batch == batch != NO_BATCH
        # Where a part is there and the plan is not known, `_missing` has more to say.
        is_told = outcomes.all_committed or bool(planned and newest.planned)
        if is_replayed and is_told and not outcomes.all_gone(newest):
            self._check_same(newest, planned, written)
        if not outcomes.all_committed:
            return tuple(self._missing(newest, outcomes, batch, written))
        return () if is_repeated or is_replayed else tuple(written)

    def _missing(
        self,
        decision: Decision,
        outcomes: _Outcomes,
        batch: int,
        written: Sequence[WrittenTransaction],
    ) -> list[WrittenTransaction]:
        """Those of `written` that replace what was aborted of a decision."""
        fresh = [transaction for transaction in written if transaction not in decision]
        if written and not fresh:
            self._raise_aborted(decision, outcomes)
        if outcomes.unknown:
            self._raise_partly(decision, outcomes, "What is not known cannot be written again.")
        if decision.batch != batch:
            self._raise_partly(decision, outcomes, "That micro-batch was not run again.")
        if outcomes.all_gone(decision):
            return fresh
        gone = Counter(transaction.digest for transaction in outcomes.aborted)
        there = Counter(transaction.digest for transaction in outcomes.committed)
        if Counter(t.digest for t in fresh) != gone + there + Counter(decision.settled):
            self._raise_partly(
                decision,
                outcomes,
                "What was written now is not the same rows in the same tasks, or goes to another "
                "topic.",
            )
        wanted = []
        for transaction in fresh:
            if gone[transaction.digest]:
                gone[transaction.digest] -= 1
                wanted.append(transaction)
        return wanted

    def _check_open(
        self, transactions: Transactions, lead: Lead, wanted: Sequence[WrittenTransaction]
    ) -> None:
        """Raises PrefixInUseError where another leads, and TransactionAbortedError unless all can
        still be committed: nothing is decided yet."""
        producers = [lead.producer, *(transaction.producer for transaction in wanted)]
        try:
            known = transactions.describe([producer.transactional_id for producer in producers])
        except IncompatibleBrokerVersion:
            return
        self._check_leads(known, lead.producer)
        ended = []
        for transaction in wanted:
            found = known.get(transaction.producer.transactional_id)
            if found is None or (found.producer, found.state) != (transaction.producer, ONGOING):
                ended.append(transaction)
        if ended:
            raise TransactionAbortedError(
                f"{_names(ended)} of {len(wanted)} transactions were aborted before the write was "
                f"decided; nothing of them is visible. {self._why_aborted()}"
            )

    def _check_owner(self, newest: Decision | None, owner: str) -> None:
        if newest is not None and newest.owner != owner:
            theirs, ours = (
                "batch queries" if each == BATCH_QUERY else f"the streaming query {each}"
                for each in (newest.owner, owner)
            )
            raise PrefixInUseError(
                f"The transactionalIdPrefix {self._prefix} belongs to {theirs}, and this is {ours}"
                ". Give each query a prefix of its own. A query that starts anew, without its old "
                "checkpoint, needs a new prefix and writes again what it reads again: let its "
                "startingOffsets begin after the last record that was written (the rows tell, or "
                "the group of commitOffsetsToGroup)."
            )

    def _check_order(self, newest: Decision, batch: int, planned: Planned) -> None:
        """Raises PrefixInUseError for a micro-batch that comes before one that was decided, or goes
        on from another one of its number."""
        if batch < newest.batch:
            raise PrefixInUseError(
                f"Micro-batch {batch} is to be committed, but {newest.batch} was before, with the "
                f"transactionalIdPrefix {self._prefix}: the checkpoint is an old copy. "
                f"{_OTHER_BATCH_WAYS_ON}"
            )
        known = planned.end_of(newest.batch) if newest.end and batch > newest.batch else ""
        if known and known != newest.end:
            raise PrefixInUseError(
                f"Micro-batch {batch} is to be committed, and micro-batch {newest.batch} of its "
                "checkpoint does not end where the one did that was committed with the "
                f"transactionalIdPrefix {self._prefix}: that was of a copy of this checkpoint. "
                f"{_OTHER_BATCH_WAYS_ON}"
            )

    def _check_same(
        self, newest: Decision, planned: str, written: Sequence[WrittenTransaction]
    ) -> None:
        """Raises PrefixInUseError for another micro-batch that has the number of the decided one.

        It is the same where it was planned from the same, whatever its rows are by now, and where
        its rows are the same, whatever they were planned from.
        """
        if planned and planned == newest.planned:
            return
        if Counter(transaction.digest for transaction in written) == newest.digests:
            return
        why = (
            "it was planned anew, from other offsets: the checkpoint is an old copy."
            if planned and newest.planned
            else "the checkpoint is an old copy, or the query gives other rows, or cuts them into "
            "other tasks, when it runs again. (Where Python can read the option "
            "checkpointLocation of the write, offsets tell the one from the other.)"
        )
        raise PrefixInUseError(
            f"Micro-batch {newest.batch} was committed with {newest.record_count} records and is "
            f"to be committed with {sum(each.record_count for each in written)} that are not the "
            f"same, with the transactionalIdPrefix {self._prefix}: {why} {_OTHER_BATCH_WAYS_ON}"
        )

    def _raise_aborted(self, decision: Decision, outcomes: _Outcomes) -> NoReturn:
        if outcomes.unknown:
            self._raise_partly(decision, outcomes, "What is not known cannot be written again.")
        raise TransactionAbortedError(
            f"{_names(outcomes.aborted)} of {len(decision.transactions)} transactions were aborted "
            f"before they could be committed. {self._why_aborted()} Run the same again: it writes "
            "only what is missing."
        )

    def _not_decided(self, error: Exception) -> TransactionAbortedError:
        return TransactionAbortedError(
            f"The write's decision was aborted; nothing of it is visible ({error}). Brokers do so "
            f"after {self._lead_timeout_ms} ms, and when another run with the transactionalIdPrefix"
            f" {self._prefix} takes over. Run the same again; if this is the same query started "
            "twice, stop one."
        )

    def _unfinished(self, error: Exception) -> CommitUnfinishedError:
        return CommitUnfinishedError(
            f"The write is decided, and not all of it could be made visible: {error} Do not write "
            f"it again. {self._who_goes_on()}"
        )

    def _uncertain(self, error: BaseException | None) -> CommitUnfinishedError:
        return CommitUnfinishedError(
            f"Whether the write is decided is not known: {error} {self._who_goes_on()} Look then "
            "whether its rows are there, before you write them again: all are, or none."
        )

    def _who_goes_on(self) -> str:
        return (
            f"What runs next with the transactionalIdPrefix {self._prefix} goes on with it: the "
            "streaming query, which needs no more, or any df.write, of no rows too. After "
            f"kafka.transaction.timeout.ms={self._client.transaction_timeout_ms} brokers abort "
            "what is left of it."
        )

    def _raise_partly(self, decision: Decision, outcomes: _Outcomes, why: str) -> NoReturn:
        what = "A write" if decision.batch == NO_BATCH else f"Micro-batch {decision.batch}"
        parts = ", ".join(
            f"{len(some)} transactions are {state} ({sum(t.record_count for t in some)} records, "
            f"{_names(some)})"
            for state, some in (
                ("committed", outcomes.committed),
                ("aborted", outcomes.aborted),
                ("not known", outcomes.unknown),
            )
            if some
        )
        raise PartlyCommittedError(
            f"{what} with the transactionalIdPrefix {self._prefix} was committed in part: {parts}. "
            f"{why} To go on, choose another prefix: the whole is written then, and what is "
            "committed is there twice. A longer kafka.transaction.timeout.ms makes this rarer."
        )

    def _lost(self) -> DecisionsLostError:
        return DecisionsLostError(
            f"The transactionalIdPrefix {self._prefix} was used before, and topic "
            f"{decisions_topic(self._prefix)} does not say what was committed with it: it was "
            "deleted, created again or emptied, or an earlier release had committed nothing yet. "
            "Choose another prefix: a streaming query then writes its next micro-batch whole, and "
            "where that was committed before, its records are there twice (CHECKPOINT/commits has "
            "no file of its number, so look in the output for its rows first); a df.write that "
            "failed may be visible in part. Transactions that may be decided stay open, and "
            "readers of committed records wait for them, for up to kafka.transaction.timeout.ms="
            f"{self._client.transaction_timeout_ms}."
        )

    def _why_aborted(self) -> str:
        return (
            "Brokers do so after kafka.transaction.timeout.ms="
            f"{self._client.transaction_timeout_ms} (raise it, with transaction.max.timeout.ms of "
            "the brokers, if writing takes longer), and when another run takes over."
        )

    def _replaced(self, why: str) -> PrefixInUseError:
        return PrefixInUseError(
            f"Another run with the transactionalIdPrefix {self._prefix} took over ({why}). Give "
            "each query a prefix of its own; if this is the same query started twice, stop one."
        )

    def _in_words(self, error: KafkaError) -> KafkalogError:
        if isinstance(error, FENCED):
            return self._replaced(str(error))
        if isinstance(error, InvalidTransactionTimeoutError):
            return InvalidOptionError(
                f"kafka.transaction.timeout.ms={self._client.transaction_timeout_ms} exceeds "
                "transaction.max.timeout.ms of the brokers: lower the one or raise the other."
            )
        if isinstance(
            error, (TransactionalIdAuthorizationFailedError, TopicAuthorizationFailedError)
        ):
            return TransactionError(
                f"The brokers refuse: {error}. With transactionalIdPrefix={self._prefix} a user "
                f"needs Write and Describe on transactional ids that begin with {self._prefix}-, "
                "and Create, Read and Write on the topic "
                f"{decisions_topic(self._prefix)}."
            )
        return TransactionError(f"With transactionalIdPrefix={self._prefix}: {error}")


class TaskWrite:
    """One task's transaction and its producer, from `begin` on: a task without rows has none."""

    def __init__(
        self,
        cluster: Cluster,
        transactions: Transactions,
        begin: Callable[[], ProducerIdentity],
        timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._begin = begin
        self._timeout_ms = timeout_ms
        self._identity: ProducerIdentity | None = None
        self._producer: Producer | None = None

    @property
    def name(self) -> str:
        """Its transactional id; empty before `begin`."""
        return "" if self._identity is None else self._identity.transactional_id

    def begin(self) -> Producer:
        """Begins the transaction, once: what the producer sends is in it. To be flushed before
        `written`."""
        assert self._producer is None
        self._identity = self._begin()
        self._producer = Producer(self._cluster, (self._transactions, self._identity))
        return self._producer

    def written(self, record_count: int, digest: str) -> WrittenTransaction | None:
        """The transaction as it is left open; None when nothing was written."""
        if self._identity is None or self._producer is None:
            return None
        topic_partition, offset = self._producer.last_written or (TopicPartition("", -1), -1)
        return WrittenTransaction(
            self._identity,
            record_count,
            digest,
            topic_partition.topic,
            topic_partition.partition,
            offset,
        )

    def abort(self) -> None:
        """This task's own transaction, and nobody else's: an end is refused to an old epoch, where
        a new epoch would abort whatever is open by then under the same id.

        What is still on its way with the old epoch is refused then (see KIP-890).
        """
        if self._identity is not None:
            with suppress(KafkaError, KafkalogError):
                self._transactions.abort_and_fence(self._identity, self._timeout_ms)


def _ended_by_commit(
    cluster: Cluster, transaction: WrittenTransaction, deadline: Deadline
) -> bool | None:
    if transaction.offset < 0:
        return None
    topic_partition = TopicPartition(transaction.topic, transaction.partition)
    return ended_by_commit(
        cluster, transaction.producer, topic_partition, transaction.offset, deadline
    )


def _is_from(error: BaseException, kinds: tuple[type[KafkaError], ...]) -> bool:
    return isinstance(error, kinds) or isinstance(error.__cause__, kinds)


def _names(transactions: Sequence[WrittenTransaction]) -> str:
    names = [t.producer.transactional_id for t in transactions[:_MOST_NAMED]]
    more = len(transactions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
