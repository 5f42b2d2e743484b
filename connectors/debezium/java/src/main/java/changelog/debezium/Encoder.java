package changelog.debezium;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.node.ArrayNode;
import io.debezium.engine.ChangeEvent;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.header.Headers;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Encodes records as frames, column by column. Topics, partitions and schemas are sent once, as definitions with a number.
 */
final class Encoder {
    /** A frame, the number of its last record, and for each partition its last record, which has the offset. */
    record Encoded(ByteBuffer frame, long last, Collection<ChangeEvent<SourceRecord, SourceRecord>> offsets) {
    }

    private static final byte TOPIC = 't';
    private static final byte PARTITION = 'p';
    private static final byte SCHEMA = 's';
    private static final int IDS = 4;
    private static final int TEXTS = 4;
    private static final int IDENTITIES_MAX = 10_000;

    private final Frames frames;
    private final int frameMax;
    private final JsonConverter keys = converter(true);
    private final JsonConverter values = converter(false);
    private final Map<String, Integer> topics = new HashMap<>();
    private final Map<Map<String, ?>, Integer> partitions = new HashMap<>();
    private final Map<Schema, Integer> schemas = new HashMap<>();
    private final Map<Schema, Integer> schemaIdentities = new IdentityHashMap<>(); // comparing whole schemas is slow
    private int definitions;
    private long last;

    private final Map<Integer, ChangeEvent<SourceRecord, SourceRecord>> offsets = new LinkedHashMap<>();
    private final ByteArrayOutputStream[] texts = new ByteArrayOutputStream[TEXTS];
    private int[][] ids = new int[IDS][0];
    private int[][] ends = new int[TEXTS][0];
    private long[] timestamps = new long[0];
    private int count;

    Encoder(Frames frames, int frameMax) {
        this.frames = frames;
        this.frameMax = frameMax;
        Arrays.setAll(texts, i -> new ByteArrayOutputStream());
    }

    /** Encodes records from this index on until a frame is full; returns the index of the next record. */
    int encode(List<ChangeEvent<SourceRecord, SourceRecord>> records, int start) {
        reserve(records.size() - start);
        int size = 0;
        int next = start;
        while (next < records.size() && (size < frameMax || next == start)) {
            size += add(records.get(next++));
        }
        return next;
    }

    /** Returns what was encoded since the last call, as a frame. */
    Encoded take(boolean endsBatch) {
        int length = 16 + 8 * count + 4 * count * IDS + 4 * (count + 1) * TEXTS;
        for (ByteArrayOutputStream text : texts) {
            length = Math.addExact(length, text.size());
        }
        last += count;
        ByteBuffer frame = Frames.frame(Frames.RECORDS, length);
        frame.putLong(last).putInt(count).putInt(endsBatch ? 1 : 0);
        for (int i = 0; i < count; i++) {
            frame.putLong(timestamps[i]);
        }
        for (int[] column : ids) {
            put(frame, column);
        }
        for (int[] column : ends) {
            put(frame.putInt(0), column);
        }
        for (ByteArrayOutputStream text : texts) {
            frame.put(text.toByteArray());
            text.reset();
        }
        Encoded encoded = new Encoded(frame, last, List.copyOf(offsets.values()));
        offsets.clear();
        count = 0;
        return encoded;
    }

    private void put(ByteBuffer frame, int[] column) {
        for (int i = 0; i < count; i++) {
            frame.putInt(column[i]);
        }
    }

    private void reserve(int size) {
        if (timestamps.length < size) {
            timestamps = new long[size];
            ids = new int[IDS][size];
            ends = new int[TEXTS][size];
        }
    }

    private int add(ChangeEvent<SourceRecord, SourceRecord> event) {
        SourceRecord record = event.value();
        int partition = partition(record.sourcePartition());
        offsets.put(partition, event);
        ids[0][count] = topics.computeIfAbsent(record.topic(), name -> define(TOPIC, name.getBytes(StandardCharsets.UTF_8)));
        ids[1][count] = partition;
        ids[2][count] = schema(record.keySchema(), keys);
        ids[3][count] = schema(record.valueSchema(), values);
        timestamps[count] = record.timestamp() == null ? Long.MIN_VALUE : record.timestamp();
        int size = text(0, json(record.sourceOffset()));
        size += text(1, keys.fromConnectData(record.topic(), record.keySchema(), record.key()));
        size += text(2, values.fromConnectData(record.topic(), record.valueSchema(), record.value()));
        size += text(3, headers(record.topic(), record.headers()));
        count++;
        return size;
    }

    private int text(int column, byte[] bytes) {
        ByteArrayOutputStream text = texts[column];
        int length = bytes == null ? 0 : bytes.length;
        if (length > 0) {
            text.write(bytes, 0, length);
        }
        ends[column][count] = text.size();
        return length;
    }

    /** Returns {@code [[NAME, SCHEMA, VALUE], …]}; nothing if there is no header. */
    private byte[] headers(String topic, Headers headers) {
        if (headers == null || headers.isEmpty()) {
            return null;
        }
        ArrayNode array = Commands.JSON.createArrayNode();
        try {
            for (Header header : headers) {
                byte[] value = values.fromConnectData(topic, header.schema(), header.value());
                array.addArray()
                        .add(header.key())
                        .add(schema(header.schema(), values))
                        .add(value == null ? null : Commands.JSON.readTree(value));
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return json(array);
    }

    private int partition(Map<String, ?> partition) {
        Integer id = partitions.get(partition);
        if (id == null) {
            id = define(PARTITION, json(partition));
            partitions.put(Map.copyOf(partition), id);
        }
        return id;
    }

    /** Returns the number of a schema; 0 if there is none. */
    private int schema(Schema schema, JsonConverter converter) {
        if (schema == null) {
            return 0;
        }
        Integer id = schemaIdentities.get(schema);
        if (id == null) {
            id = schemas.computeIfAbsent(schema, unknown -> define(SCHEMA, json(converter.asJsonSchema(unknown))));
            if (schemaIdentities.size() >= IDENTITIES_MAX) { // a transformation may make a schema for each record
                schemaIdentities.clear();
            }
            schemaIdentities.put(schema, id);
        }
        return id;
    }

    private int define(byte sort, byte[] content) {
        int id = ++definitions;
        ByteBuffer frame = Frames.frame(Frames.DEFINITION, 8 + content.length);
        frames.add(frame.putInt(id).put(sort).put(new byte[3]).put(content));
        return id;
    }

    private static byte[] json(Object value) {
        try {
            return Commands.JSON.writeValueAsBytes(value);
        } catch (JsonProcessingException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static JsonConverter converter(boolean isKey) {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false", "replace.null.with.default", "false"), isKey);
        return converter;
    }
}
