package changelog.debezium;

import io.debezium.document.DocumentReader;
import io.debezium.document.DocumentWriter;
import io.debezium.relational.history.AbstractSchemaHistory;
import io.debezium.relational.history.HistoryRecord;
import io.debezium.relational.history.SchemaHistoryException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * The schema history, for connectors that learn from the database's log how tables changed. Python sends the history at
 * the start, and receives each new record as a frame, before the rows that need the record.
 */
public final class History extends AbstractSchemaHistory {
    private static final List<byte[]> RECORDS = new ArrayList<>();

    private static volatile Frames frames;

    static void seed(byte[] record) {
        RECORDS.add(record);
    }

    static void writeTo(Frames output) {
        frames = output;
    }

    @Override
    protected void storeRecord(HistoryRecord record) {
        try {
            byte[] bytes = DocumentWriter.defaultWriter().writeAsBytes(record.document());
            synchronized (RECORDS) {
                RECORDS.add(bytes);
                frames.add(Frames.HISTORY, bytes);
            }
        } catch (RuntimeException e) {
            throw new SchemaHistoryException("a record of the schema history cannot be written", e);
        }
    }

    @Override
    protected void recoverRecords(Consumer<HistoryRecord> records) {
        List<byte[]> recorded;
        synchronized (RECORDS) {
            recorded = List.copyOf(RECORDS);
        }
        DocumentReader reader = DocumentReader.defaultReader();
        for (byte[] record : recorded) {
            try {
                records.accept(new HistoryRecord(reader.read(record)));
            } catch (IOException e) {
                throw new SchemaHistoryException("a record of the schema history is no JSON object", e);
            }
        }
    }

    @Override
    public boolean exists() {
        synchronized (RECORDS) {
            return !RECORDS.isEmpty();
        }
    }

    @Override
    public boolean storageExists() {
        return true;
    }
}
