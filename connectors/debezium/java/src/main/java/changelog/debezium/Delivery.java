package changelog.debezium;

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.ChangeConsumer;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.List;
import java.util.Queue;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Sends batches of records to Python, and tells the connector which records Python has acknowledged.
 *
 * <p>The engine's thread does not wait for the acknowledgement of a batch, so the connector reads on while Python
 * works. The engine waits only while too many bytes are in flight. Another thread reports acknowledged records to the
 * connector, because the connector may have to wait for the database before it returns from a report.
 */
final class Delivery implements ChangeConsumer<ChangeEvent<SourceRecord, SourceRecord>> {
    private record Sent(
            long last,
            long size,
            Collection<ChangeEvent<SourceRecord, SourceRecord>> offsets,
            RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer) {
    }

    private static final long RETRY_MILLIS = 50;

    private final Frames frames;
    private final Encoder encoder;
    private final long inFlightMax;
    private final Queue<Sent> unacknowledged = new ArrayDeque<>();
    private long inFlight;
    private long acknowledged;
    private boolean stopping;
    private DebeziumEngine<?> engine;

    Delivery(Frames frames, int frameMax, long inFlightMax) {
        this.frames = frames;
        this.inFlightMax = inFlightMax;
        this.encoder = new Encoder(frames, frameMax);
    }

    /** Begins to report acknowledged records, and to listen to {@link #stop}. */
    void start(DebeziumEngine<?> running) {
        engine = running;
        Thread thread = new Thread(this::report, "changelog-acknowledgements");
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void handleBatch(
            List<ChangeEvent<SourceRecord, SourceRecord>> records,
            RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer)
            throws InterruptedException {
        synchronized (encoder) { // a connector may have several tasks, each with its own thread
            int next = 0;
            while (next < records.size()) {
                next = encoder.encode(records, next);
                send(encoder.take(next == records.size()), committer);
            }
        }
    }

    private synchronized void send(
            Encoder.Encoded encoded, RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer)
            throws InterruptedException {
        long size = encoded.frame().capacity();
        while (inFlight > 0 && inFlight + size > inFlightMax) {
            wait();
        }
        inFlight += size;
        unacknowledged.add(new Sent(encoded.last(), size, encoded.offsets(), committer));
        frames.add(encoded.frame());
    }

    /** Notes that Python has stored all records up to the one with this number. */
    synchronized void acknowledge(long last) {
        acknowledged = Math.max(acknowledged, last);
        notifyAll();
    }

    /** Stops the engine after all acknowledged records have been reported to the connector. */
    synchronized void stop() {
        stopping = true;
        notifyAll();
    }

    private void report() {
        try {
            for (Sent sent = next(); sent != null; sent = next()) {
                for (ChangeEvent<SourceRecord, SourceRecord> record : sent.offsets()) {
                    sent.committer().markProcessed(record);
                }
                sent.committer().markBatchFinished();
            }
            close();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Waits for a frame whose records are all acknowledged; returns null when the engine has to stop. */
    private synchronized Sent next() throws InterruptedException {
        while (unacknowledged.isEmpty() || unacknowledged.peek().last() > acknowledged) {
            if (stopping) {
                return null;
            }
            wait();
        }
        Sent sent = unacknowledged.remove();
        inFlight -= sent.size();
        notifyAll();
        return sent;
    }

    private void close() throws InterruptedException {
        while (true) {
            try {
                engine.close();
                return;
            } catch (IllegalStateException e) {
                Thread.sleep(RETRY_MILLIS); // the engine refuses to close while its tasks start, or if it has stopped
            } catch (IOException e) {
                return;
            }
        }
    }
}
