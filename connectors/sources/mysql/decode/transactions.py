"""Follows the transactions of the binary log, and passes their content to the assembly of the capture core.

    GTID ── QUERY "BEGIN" ── TABLE_MAP ── ROWS ── TABLE_MAP ── ROWS ── XID        a transaction
    GTID ── QUERY "ALTER TABLE …"                                                 a change of a definition
    GTID ── QUERY "XA START …" ── TABLE_MAP ── ROWS ── XA_PREPARE                 its rows are held (`prepared`) …
    GTID ── QUERY "XA COMMIT …"                                                   … and published with this GTID

MariaDB has no QUERY at the beginning of a transaction: its GTID event says what kind of transaction begins.
"""

from changelog.connectors.capture.assembly.assembly import AssemblyRun
from changelog.connectors.capture.rows.row_records import Transaction
from changelog.connectors.sources.mysql.decode.events import events as log
from changelog.connectors.sources.mysql.decode.log_state import LogState, LogTransaction
from changelog.connectors.sources.mysql.decode.prepared import HeldTransaction, Signed
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.rows.message_rows import message_rows
from changelog.connectors.sources.mysql.decode.rows.row_images import images
from changelog.connectors.sources.mysql.decode.rows.row_texts import RowTexts
from changelog.connectors.sources.mysql.decode.rows.tables import Tables, column_changes
from changelog.connectors.sources.mysql.decode.statements import statements
from changelog.connectors.sources.mysql.decode.statements.effects import Transactional, Verb
from changelog.connectors.sources.mysql.decode.statements.statement_stamps import comment_stamp, tag_stamp
from changelog.connectors.sources.mysql.decode.statements.statement_text import statement_text
from changelog.connectors.sources.mysql.decode.stops import SKIP, Stops
from changelog.connectors.sources.mysql.decode.table_effects import TableEffects
from changelog.envelope.entity import Entity
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.signal import FENCE_PREFIX
from changelog.envelope.signal import PREFIX as SIGNAL_PREFIX
from changelog.envelope.stamp import PREFIX as STAMP_PREFIX
from changelog.envelope.versions import TableColumns

STAMP_TABLE = "changelog_stamp"
SIGNAL_TABLE = "changelog_signal"
"""A row that is inserted into one of these tables is a message to the service. Its column `content` has the text."""

_BEGIN = b"BEGIN"
_INSERT = log.Operation.INSERT

OPS = {
    log.Operation.INSERT: Op.CREATE,
    log.Operation.UPDATE: Op.UPDATE,
    log.Operation.DELETE: Op.DELETE,
}


class TransactionReader:
    """Reads the events of one block. `run` assembles them, and `texts` collects the rows that the run takes."""

    def __init__(self, state: LogState, tables: Tables, run: AssemblyRun, texts: RowTexts, stops: Stops) -> None:
        self._state, self._tables, self._run, self._texts = state, tables, run, texts
        self._stops, self._effects = stops, TableEffects(state, tables, run, texts, stops)

    def read(self, event: log.Event) -> bool:
        """Handles the next event. Returns whether the stream is between two transactions now.

        Raises ChangelogError. Unless its kind is MALFORMED, the rows before the error have been encoded.
        """
        state = self._state
        state.place.pass_event(event.header)
        match event:
            case log.RowsEvent():
                self._rows(event)
            case log.TableMap():
                self._table_map(event)
            case log.RowsQuery():
                self._sign(event)
            case log.Xid():
                self._end()
            case log.MysqlGtid():
                self._mysql_gtid(event)
            case log.MariadbGtid():
                self._mariadb_gtid(event)
            case log.Query():
                self._query(event)
            case log.XaPrepare():
                self._prepare(event)
            case log.Rotate():
                state.place.enter(event.file, event.position)
            case log.AnonymousGtid() | log.Incident() | log.StatementContext() | log.Unsupported():
                self._refuse(event)
        return state.transaction is None

    # The beginning of a transaction

    def _mysql_gtid(self, event: log.MysqlGtid) -> None:
        committed_at = event.original_commit_us or event.header.timestamp_s * 1_000_000
        self._begin(event.text, event, committed_at)

    def _mariadb_gtid(self, event: log.MariadbGtid) -> None:
        self._begin(event.text, event, event.header.timestamp_s * 1_000_000)
        if event.xa_prepare and event.xa_id is not None:
            self._hold(event.xa_id)
        elif not event.standalone and not event.xa_complete:
            self._open()

    def _begin(self, gtid: str, event: log.MysqlGtid | log.MariadbGtid, committed_at: int) -> None:
        state = self._state
        if state.transaction is not None:
            raise ChangelogError(Kind.MALFORMED, "the stream began a transaction inside another")
        state.begin(
            LogTransaction(
                gtid=gtid,
                commit=state.place.begin_of(event.header),
                committed_at=committed_at,
                is_repeated=state.is_seen(gtid),
                stamp=None if isinstance(event, log.MariadbGtid) else tag_stamp(event.tag),
                takes_effect=isinstance(event, log.MysqlGtid) or event.alter in (None, log.AlterPhase.COMMIT),
            )
        )

    def _open(self, *, one_phase: bool = False) -> None:
        """Begins the transaction in the assembly, unless the whole transaction was delivered earlier. If only a part of
        it was (`LogState.half`), the rest gets the epoch and the commit of that part.

        `one_phase` says that it is an XA transaction that was committed in ONE PHASE.
        """
        log_transaction, state = self._begun(), self._state
        state.is_open = True
        if log_transaction.is_repeated:
            return
        epoch, commit = state.epoch, log_transaction.commit
        if state.half is not None and state.half[0] == log_transaction.gtid:
            _, epoch, commit = state.half
        state.on_delivery(log_transaction.commit, log_transaction.gtid, one_phase)
        self._run.begin(
            Transaction(
                xid=log_transaction.commit,
                name=log_transaction.gtid,
                epoch=epoch,
                commit=commit,
                committed_at=log_transaction.committed_at,
            )
        )
        self._run.sign(log_transaction.stamp)

    def _begun(self) -> LogTransaction:
        if self._state.transaction is None:
            raise ChangelogError(Kind.MALFORMED, "the stream sent a change outside a transaction")
        return self._state.transaction

    # The end of a transaction

    def _end(self) -> None:
        log_transaction = self._begun()
        if not log_transaction.is_repeated:
            self._run.commit(self._state.place.end)
        self._state.end(log_transaction)

    def _hold(self, xa_id: log.XaId) -> None:
        self._state.hold(xa_id, self._begun())

    def _prepare(self, event: log.XaPrepare) -> None:
        """Handles the event after the rows of an XA transaction: holds the rows until the XA transaction is committed.

        With `one_phase`, the XA transaction is committed here, so its rows are published at once.
        """
        state = self._state
        if state.holding is None:
            raise ChangelogError(Kind.MALFORMED, "the stream prepared an XA transaction that it did not begin")
        _, transaction = state.holding
        if event.one_phase:
            self._open(one_phase=True)
            self._replay(transaction)
            self._end()
            return
        state.prepared.hold(event.xa_id, transaction)
        state.end(self._begun())

    def _complete(self, xa_id: log.XaId, *, commit: bool) -> None:
        """Publishes the rows of a prepared transaction that is committed now, or forgets them after a rollback.

        If the transaction was prepared before the changelog began, its rows are unknown, and it may have changed any
        table. (The log looks the same if the transaction has no rows and MySQL crashed before the COMMIT: then only the
        COMMIT is logged.)
        """
        log_transaction = self._begun()
        transaction = self._state.complete(xa_id, log_transaction.commit)
        self._open()
        if transaction is not None and commit:
            self._replay(transaction)
        elif commit and not log_transaction.is_repeated:
            for table in self._tables.names:
                self._effects.missed(table, "the log has only the commit of an XA transaction")
        self._end()

    def _replay(self, transaction: HeldTransaction) -> None:
        for event in () if self._begun().is_repeated else transaction.events:
            match event:
                case log.TableMap():
                    self._state.maps[event.table_id] = event
                case log.RowsEvent():
                    self._publish(event)
                case Signed(stamp=stamp):
                    self._run.sign(stamp or self._begun().stamp)

    # Rows

    def _sign(self, event: log.RowsQuery | log.Query) -> None:
        """Applies the stamp in the comment of a statement to the statement's rows."""
        stamp = comment_stamp(event.sql)
        if self._state.holding is not None:
            self._state.holding[1].sign(stamp)
        elif self._run.is_open:
            self._run.sign(stamp or self._begun().stamp)

    def _table_map(self, event: log.TableMap) -> None:
        state = self._state
        state.maps[event.table_id] = event
        if state.holding is not None and self._is_read(event):
            state.holding[1].add(event)

    def _rows(self, event: log.RowsEvent) -> None:
        state = self._state
        if state.holding is not None:
            if self._is_read(self._map(event)):
                xa_id, transaction = state.holding
                transaction.add(event)
                state.prepared.check(xa_id, transaction)
            if event.ends_statement:
                state.holding[1].sign(None)
        elif not self._begun().is_repeated:
            self._publish(event)

    def _map(self, event: log.RowsEvent) -> log.TableMap:
        table_map = self._state.maps.get(event.table_id)
        if table_map is None:
            raise ChangelogError(Kind.MALFORMED, "the stream sent rows of a table that it did not describe")
        return table_map

    def _is_read(self, table_map: log.TableMap) -> bool:
        return self._tables.entity(table_map) is not None or table_map.table in (STAMP_TABLE, SIGNAL_TABLE)

    def _publish(self, event: log.RowsEvent) -> None:
        """Passes the rows of an event to the assembly. If the rows are messages to the service, passes the messages."""
        table_map = self._map(event)
        table = self._tables.present(table_map)
        if table is not None:
            self._take(table, table_map, event)
        elif (entity := self._tables.entity(table_map)) is not None:
            table = self._described(entity, table_map)
            if table is not None:
                self._take(table, table_map, event)
        elif event.operation is _INSERT:
            if table_map.table == STAMP_TABLE:
                self._messages(STAMP_PREFIX, table_map, event)
            elif (table_map.schema, table_map.table) == (self._state.database, SIGNAL_TABLE):
                self._messages(SIGNAL_PREFIX, table_map, event)
        if event.flags & log.ENDS_STATEMENT:
            self._run.sign(self._begun().stamp)

    def _described(self, entity: Entity, table_map: log.TableMap) -> BoundTable | None:
        """Returns the table that a new table map describes, and tells the assembly which columns it has.

        Returns None if the rows of the table are to be skipped, because the log does not name their columns.
        """
        run = self._run
        run.flush()
        if table_map.columns is None:
            self._stops.unless_skipped(
                f"the binary log has no names of the columns of the table {table_map.schema}.{table_map.table}",
                f"SET GLOBAL binlog_row_metadata = FULL; run `{SKIP}`, then `changelog rebuild {entity.name}`",
            )
            return None
        before, table = self._tables.describe(entity, table_map)
        binding = table.bound.binding
        if before is not None and before.bound.binding.shape != binding.shape:
            run.alter(entity.table, column_changes(before, table, run.here()))
        columns = TableColumns(columns=binding.shape, relation=binding.relid)
        (run.set_columns if binding.lost is not None else run.describe)(entity, columns)
        return table

    def _take(self, table: BoundTable, table_map: log.TableMap, event: log.RowsEvent) -> None:
        self._state.check_order()
        op, texts, count = OPS[event.operation], self._texts, 0
        usual = texts.add_event(table, op, event)
        if usual:
            self._run.take(usual)
            return
        for before, after in images(table_map, event):
            absent = table.absent(before, after)
            if absent:
                self._run.take(count)
                count = 0
                self._lacks(table, absent)
                texts.leave_out()
            else:
                texts.add(table, op, before, after)
            count += 1
        self._run.take(count)

    def _lacks(self, table: BoundTable, absent: list[str]) -> None:
        """Raises an error for a row that lacks columns, unless an operator has decided to skip it."""
        columns = ("the column " if len(absent) == 1 else "the columns ") + ", ".join(absent)
        self._stops.unless_skipped(
            f"a row of the table {table.bound.binding.table} lacks {columns}: "
            "in the session that wrote the row, binlog_row_image was not FULL",
            f"run `{SKIP}`, then `changelog rebuild {table.entity.name}`",
        )

    def _messages(self, prefix: str, table_map: log.TableMap, event: log.RowsEvent) -> None:
        """Passes on the text and the number of each inserted row. (The signature of a signal covers the row's number.)

        A signal without a text only asks the service to store a checkpoint soon (`admin.signals.send_fence`).
        """
        for number, content in message_rows(table_map, event):
            if prefix == SIGNAL_PREFIX and not content:
                self._run.message(FENCE_PREFIX, b"")
            else:
                self._run.message(prefix, content, number=number)

    # Statements

    def _query(self, event: log.Query) -> None:
        if event.sql == _BEGIN:
            self._open()
            return
        effects = statements.effects(
            statement_text(event, self._tables.charsets),
            event.database,
            ansi_quotes=event.ansi_quotes,
            no_backslash_escapes=event.no_backslash_escapes,
            lower_case_table_names=self._state.lower_case_table_names,
        )
        steps = [effect for effect in effects if isinstance(effect, Transactional)]
        if steps:
            self._step(steps[0])
            return
        is_alone = not self._state.is_open and self._state.holding is None
        if is_alone:  # a statement outside a transaction is a transaction of its own
            self._open()
        if not self._begun().is_repeated and self._begun().takes_effect:
            self._sign(event)
            for effect in effects:
                self._effects.apply(effect)
        if is_alone:
            self._end()

    def _step(self, step: Transactional) -> None:
        match step.verb:
            case Verb.BEGIN:
                self._open()
            case Verb.COMMIT:
                self._end()
            case Verb.XA_START if self._state.holding is None and step.xa_id is not None:
                self._hold(step.xa_id)
            case Verb.XA_COMMIT | Verb.XA_ROLLBACK if step.xa_id is not None:
                self._complete(step.xa_id, commit=step.verb is Verb.XA_COMMIT)
            case Verb.ROLLBACK | Verb.ROLLBACK_TO:
                self._roll_back(ends=step.verb is Verb.ROLLBACK)

    def _roll_back(self, *, ends: bool) -> None:
        """Refuses a logged rollback. A server logs it only if the transaction changed a table that cannot roll back."""
        if not self._begun().is_repeated:
            self._stops.unless_skipped(
                "the log has a transaction that was rolled back after it changed a table whose engine cannot roll back",
                "use InnoDB for all tables that are changed together with published ones; "
                f"run `{SKIP}`, which publishes the changes that were rolled back, then `changelog rebuild`",
            )
        if ends:
            self._end()

    def _refuse(self, event: log.AnonymousGtid | log.Incident | log.StatementContext | log.Unsupported) -> None:
        """Refuses an event after which the changelog would not be exact."""
        match event:
            case log.AnonymousGtid():
                hint = "set gtid_mode = ON on the server; see `changelog check`"
                raise self._stops.error("a transaction has no GTID", hint)
            case log.Incident(number=number):
                message = f"the server could not log all changes (incident {number})"
                raise self._stops.error(message, OVER_GAP, kind=Kind.GAP)
            case log.StatementContext(name=name) | log.Unsupported(name=name):
                if not self._begun().is_repeated:
                    self._stops.unless_skipped(
                        f"the log has an event {name}, which belongs to a statement that is not logged as rows",
                        f"set binlog_format = ROW for every session; run `{SKIP}`, then `changelog rebuild`",
                    )
