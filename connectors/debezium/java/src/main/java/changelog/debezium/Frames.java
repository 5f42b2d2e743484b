package changelog.debezium;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayDeque;
import java.util.Queue;

/**
 * Writes frames to Python, in the order in which they were added, from one thread of its own.
 *
 * <p>A frame is the length of its body (4 bytes), its kind (1 byte), 3 zero bytes, and the body. All numbers are little
 * endian. {@code changelog/connectors/debezium/frames.py} describes the kinds.
 *
 * <p>Adding a frame never blocks: if a thread of the connector waited for Python, it would lose its connection to the
 * database. {@link Delivery} limits how many bytes of records wait here. This class limits how many log lines wait: if
 * Python does not read, further lines are dropped and counted.
 */
final class Frames {
    static final byte HELLO = 'H';
    static final byte DEFINITION = 'D';
    static final byte RECORDS = 'R';
    static final byte HISTORY = 'S';
    static final byte LOG = 'L';
    static final byte END = 'E';

    private static final int HEADER = 8;
    private static final int LOGS_MAX = 1000;

    private final OutputStream out;
    private final Queue<byte[]> waiting = new ArrayDeque<>();
    private final Thread writer = new Thread(this::write, "changelog-frames");
    private int waitingLogs;
    private int droppedLogs;
    private boolean closed;

    Frames(OutputStream out) {
        this.out = out;
        writer.setDaemon(true);
        writer.start();
    }

    /** Returns the buffer of a frame whose body has this many bytes. The caller must fill the whole body. */
    static ByteBuffer frame(byte kind, int length) {
        ByteBuffer frame = ByteBuffer.allocate(HEADER + length).order(ByteOrder.LITTLE_ENDIAN);
        return frame.putInt(length).put(kind).put(new byte[3]);
    }

    void add(byte kind, byte[] body) {
        add(frame(kind, body.length).put(body));
    }

    synchronized void add(ByteBuffer frame) {
        if (frame.hasRemaining()) {
            throw new IllegalStateException("a frame was not filled");
        }
        waiting.add(frame.array());
        notifyAll();
    }

    /** Adds a log line, unless too many are waiting. */
    synchronized void addLog(byte[] body) {
        if (waitingLogs >= LOGS_MAX) {
            droppedLogs++;
            return;
        }
        waitingLogs++;
        add(LOG, body);
    }

    /** Returns how many log lines were dropped since the last call. */
    synchronized int takeDroppedLogs() {
        int dropped = droppedLogs;
        droppedLogs = 0;
        return dropped;
    }

    /** Waits until everything is written, however long Python takes. If Python is gone, the watchdog ends the process. */
    void close() throws InterruptedException {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        writer.join();
    }

    private synchronized byte[] next() throws InterruptedException {
        while (waiting.isEmpty()) {
            if (closed) {
                return null;
            }
            wait();
        }
        byte[] frame = waiting.remove();
        if (frame[4] == LOG) {
            waitingLogs--;
        }
        return frame;
    }

    private void write() {
        try {
            for (byte[] frame = next(); frame != null; frame = next()) {
                out.write(frame);
            }
            out.flush();
        } catch (IOException | InterruptedException e) {
            Watchdog.halt(Watchdog.PARENT_GONE); // nobody reads any more
        }
    }
}
