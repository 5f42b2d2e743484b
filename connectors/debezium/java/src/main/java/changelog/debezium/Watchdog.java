package changelog.debezium;

import java.util.Optional;

/**
 * Ends the process if the program that started it is gone, or if it does not stop in time.
 *
 * <p>The end of standard input says that the program is gone ({@link Commands}). But a child of the program may have
 * inherited the other end of the pipe, and then the input does not end. So the watchdog also checks whether this
 * process got another parent. The watchdog halts the process instead of exiting, so that no shutdown hook and no hung
 * thread of a connector can prevent the end.
 */
final class Watchdog {
    static final int STOPPED = 0;
    static final int FAILED = 1;
    static final int PARENT_GONE = 2;
    static final int STOP_TIMED_OUT = 4; // 3 is the code of Java's -XX:+ExitOnOutOfMemoryError

    private static final long INTERVAL_MILLIS = 1000;

    private static volatile long deadlineNanos = Long.MAX_VALUE;

    private Watchdog() {
    }

    static void start() {
        Optional<Long> parent = parent();
        Thread thread = new Thread(() -> watch(parent), "changelog-watchdog");
        thread.setDaemon(true);
        thread.start();
    }

    /** Halts the process if it still runs after this time. */
    static void limit(long millis) {
        deadlineNanos = System.nanoTime() + millis * 1_000_000;
    }

    static void halt(int code) {
        Runtime.getRuntime().halt(code);
    }

    private static void watch(Optional<Long> parent) {
        while (true) {
            try {
                Thread.sleep(INTERVAL_MILLIS);
            } catch (InterruptedException e) {
                continue;
            }
            if (!parent().equals(parent)) {
                halt(PARENT_GONE);
            }
            long deadline = deadlineNanos;
            if (deadline != Long.MAX_VALUE && System.nanoTime() - deadline > 0) {
                halt(STOP_TIMED_OUT);
            }
        }
    }

    private static Optional<Long> parent() {
        return ProcessHandle.current().parent().map(ProcessHandle::pid);
    }
}
