package changelog.debezium;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Reads Python's commands: first those that start the engine, then acknowledgements and the command to stop. */
final class Commands {
    static final ObjectMapper JSON = new ObjectMapper();

    private static final byte CONFIG = 'C';
    private static final byte OFFSET = 'O';
    private static final byte HISTORY = 'S';
    private static final byte GO = 'G';
    private static final byte ACK = 'A';
    private static final byte STOP = 'Q';

    private final DataInputStream in;
    private byte kind;
    private ByteBuffer body;

    Commands(InputStream in) {
        this.in = new DataInputStream(in);
    }

    /** Returns the configuration, and passes the offsets and the schema history to their stores. */
    JsonNode readStart() throws IOException {
        JsonNode config = null;
        while (true) {
            read();
            switch (kind) {
                case CONFIG -> config = JSON.readTree(body.array());
                case OFFSET -> Offsets.seed(JSON.readTree(body.array()));
                case HISTORY -> History.seed(body.array());
                case GO -> {
                    return config;
                }
                default -> throw unknown();
            }
        }
    }

    /** Passes commands to the delivery; halts the process when the input ends. */
    void follow(Delivery delivery, long stopMillis) {
        try {
            while (true) {
                read();
                switch (kind) {
                    case ACK -> delivery.acknowledge(body.getLong());
                    case STOP -> {
                        Watchdog.limit(stopMillis);
                        delivery.stop();
                    }
                    default -> throw unknown();
                }
            }
        } catch (IOException e) {
            Watchdog.halt(Watchdog.PARENT_GONE);
        }
    }

    private void read() throws IOException {
        byte[] header = in.readNBytes(8);
        if (header.length < 8) {
            throw new EOFException();
        }
        ByteBuffer fields = ByteBuffer.wrap(header).order(ByteOrder.LITTLE_ENDIAN);
        int length = fields.getInt();
        kind = fields.get();
        byte[] bytes = in.readNBytes(length);
        if (bytes.length < length) {
            throw new EOFException();
        }
        body = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    private IOException unknown() {
        return new IOException("unknown command " + kind);
    }
}
