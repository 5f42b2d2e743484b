package changelog.debezium;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogManager;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** Sends the log of Debezium and its libraries to Python, as single lines. An exception is sent as its root cause. */
final class Logs extends Handler {
    private static final int LENGTH_MAX = 2000;

    private final Frames frames;

    private Logs(Frames frames) {
        this.frames = frames;
    }

    static void sendTo(Frames frames, Level level) {
        LogManager.getLogManager().reset();
        Logger root = Logger.getLogger("");
        root.setLevel(level);
        root.addHandler(new Logs(frames));
    }

    @Override
    public void publish(LogRecord record) {
        int dropped = frames.takeDroppedLogs();
        if (dropped > 0) {
            send("WARNING", "changelog.debezium", dropped + " log lines were dropped", null);
        }
        send(level(record.getLevel()), record.getLoggerName(), record.getMessage(), record.getThrown());
    }

    private void send(String level, String logger, String message, Throwable thrown) {
        ObjectNode line = Commands.JSON.createObjectNode();
        line.put("level", level).put("logger", logger).put("message", oneLine(message));
        if (thrown != null) {
            line.put("cause", describe(root(thrown)));
        }
        try {
            frames.addLog(Commands.JSON.writeValueAsBytes(line));
        } catch (JsonProcessingException e) {
            throw new IllegalStateException(e);
        }
    }

    static Throwable root(Throwable thrown) {
        Throwable cause = thrown;
        for (int depth = 0; cause.getCause() != null && depth < 50; depth++) {
            cause = cause.getCause();
        }
        return cause;
    }

    static String describe(Throwable thrown) {
        String name = thrown.getClass().getSimpleName();
        return thrown.getMessage() == null ? name : name + ": " + oneLine(thrown.getMessage());
    }

    static String oneLine(String text) {
        String line = text == null ? "" : text.strip().replaceAll("\\s*\\R\\s*", " ");
        return line.length() <= LENGTH_MAX ? line : line.substring(0, LENGTH_MAX) + "…";
    }

    private static String level(Level level) {
        if (level.intValue() >= Level.SEVERE.intValue()) {
            return "ERROR";
        }
        if (level.intValue() >= Level.WARNING.intValue()) {
            return "WARNING";
        }
        return level.intValue() >= Level.INFO.intValue() ? "INFO" : "DEBUG";
    }

    @Override
    public void flush() {
    }

    @Override
    public void close() {
    }
}
