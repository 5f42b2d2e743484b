package changelog.debezium;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.spi.OffsetCommitPolicy;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.util.Map;
import java.util.Properties;
import java.util.logging.Level;
import org.apache.kafka.connect.source.SourceRecord;

/** Runs Debezium's engine for a Python program: commands come on standard input, frames go to standard output. */
public final class Main {
    private static final int PROTOCOL = 1;
    private static final int CAUSES_MAX = 50;

    private final Frames frames;
    private boolean failed;

    private Main(Frames frames) {
        this.frames = frames;
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        FileOutputStream output = new FileOutputStream(FileDescriptor.out);
        System.setOut(System.err); // what a library prints must not get between the frames
        Watchdog.start();
        new Main(new Frames(output)).run();
    }

    private void run() throws IOException, InterruptedException {
        Thread.setDefaultUncaughtExceptionHandler(this::died);
        frames.add(Frames.HELLO, Commands.JSON.writeValueAsBytes(hello()));
        Commands commands = new Commands(System.in);
        JsonNode config = commands.readStart();
        Logs.sendTo(frames, Level.parse(config.get("log_level").asText()));
        Delivery delivery =
                new Delivery(frames, config.get("frame_bytes").asInt(), config.get("in_flight_bytes").asLong());
        try {
            DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = build(config, delivery);
            delivery.start(engine);
            long stopMillis = config.get("stop_ms").asLong();
            Thread reader = new Thread(() -> commands.follow(delivery, stopMillis), "changelog-commands");
            reader.setDaemon(true);
            reader.start();
            engine.run();
        } catch (Exception | LinkageError e) { // if the builder fails, it has called `end` before it throws
            end(false, e.getMessage(), e);
        }
        frames.close();
        Watchdog.halt(failed ? Watchdog.FAILED : Watchdog.STOPPED);
    }

    /** Ends the process if a thread of ours has died. Debezium notices the death of its own threads. */
    private void died(Thread thread, Throwable error) {
        if (!thread.getName().startsWith("changelog-")) {
            System.err.println(thread.getName() + " has died: " + Logs.describe(error));
            return;
        }
        end(false, error.getMessage(), error);
        try {
            frames.close();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        Watchdog.halt(Watchdog.FAILED);
    }

    private static ObjectNode hello() {
        String debezium = DebeziumEngine.class.getPackage().getImplementationVersion();
        return Commands.JSON.createObjectNode()
                .put("protocol", PROTOCOL)
                .put("java", System.getProperty("java.version"))
                .put("debezium", debezium);
    }

    private DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> build(JsonNode config, Delivery delivery) {
        Properties properties = new Properties();
        for (Map.Entry<String, JsonNode> property : config.get("properties").properties()) {
            properties.setProperty(property.getKey(), property.getValue().asText());
        }
        properties.setProperty("offset.storage", Offsets.class.getName());
        History.writeTo(frames);
        return DebeziumEngine.create(Connect.class)
                .using(properties)
                .using(Main.class.getClassLoader())
                .using(OffsetCommitPolicy.always())
                .using(this::end)
                .notifying(delivery)
                .build();
    }

    /** Sends how the engine ended. After a failure, further calls do nothing: the first one has the cause. */
    private synchronized void end(boolean success, String message, Throwable error) {
        if (failed) {
            return;
        }
        failed = !success;
        ObjectNode end = Commands.JSON.createObjectNode().put("success", success).put("message", Logs.oneLine(message));
        ArrayNode causes = end.putArray("causes");
        Throwable cause = error;
        for (int depth = 0; cause != null && depth < CAUSES_MAX; depth++) {
            causes.addObject().put("class", cause.getClass().getName()).put("message", Logs.oneLine(cause.getMessage()));
            cause = cause.getCause();
        }
        try {
            frames.add(Frames.END, Commands.JSON.writeValueAsBytes(end));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
