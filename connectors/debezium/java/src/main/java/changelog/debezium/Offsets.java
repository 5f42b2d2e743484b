package changelog.debezium;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import org.apache.kafka.connect.runtime.WorkerConfig;
import org.apache.kafka.connect.storage.OffsetBackingStore;
import org.apache.kafka.connect.util.Callback;

/**
 * The offsets from which the connector starts. Python sends them, and stores the offsets of the records that it
 * acknowledges.
 *
 * <p>Kafka Connect's key of an offset is the JSON array {@code [NAME, PARTITION]}. Only the partition is compared. It
 * is compared as JSON, because the order of its fields may change.
 */
public final class Offsets implements OffsetBackingStore {
    private static final Map<JsonNode, ByteBuffer> OFFSETS = new ConcurrentHashMap<>();

    /** Takes {@code [PARTITION, OFFSET]}. */
    static void seed(JsonNode pair) throws IOException {
        OFFSETS.put(pair.get(0), ByteBuffer.wrap(Commands.JSON.writeValueAsBytes(pair.get(1))));
    }

    @Override
    public Future<Map<ByteBuffer, ByteBuffer>> get(Collection<ByteBuffer> keys) {
        Map<ByteBuffer, ByteBuffer> offsets = new HashMap<>();
        for (ByteBuffer key : keys) {
            ByteBuffer offset = OFFSETS.get(partition(key));
            offsets.put(key, offset == null ? null : offset.duplicate());
        }
        return CompletableFuture.completedFuture(offsets);
    }

    @Override
    public Future<Void> set(Map<ByteBuffer, ByteBuffer> offsets, Callback<Void> callback) {
        offsets.forEach((key, offset) -> {
            if (offset == null) {
                OFFSETS.remove(partition(key));
            } else {
                OFFSETS.put(partition(key), offset.duplicate());
            }
        });
        if (callback != null) {
            callback.onCompletion(null, null);
        }
        return CompletableFuture.completedFuture(null);
    }

    private static JsonNode partition(ByteBuffer key) {
        byte[] bytes = new byte[key.remaining()];
        key.duplicate().get(bytes);
        try {
            return Commands.JSON.readTree(bytes).get(1);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public Set<Map<String, Object>> connectorPartitions(String connectorName) {
        return Set.of(); // only Kafka Connect's REST interface asks
    }

    @Override
    public void start() {
    }

    @Override
    public void stop() {
    }

    @Override
    public void configure(WorkerConfig config) {
    }
}
