import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** What every Java client's script shares; lines for the harness as in scenarios.py. */
final class Scenarios {
    static final String BASE = System.getenv("TAILRACE_CLIENT_BASE"); // ends in /v1
    static final String KEY = System.getenv("TAILRACE_CLIENT_KEY");
    static final String MODEL = System.getenv("TAILRACE_CLIENT_MODEL");

    static final String WEATHER = "call get_weather {\"city\": \"Paris\"}";
    static final String LONG_CALL = "call get_weather 150"; // so many tokens, about two seconds

    private static final Path DONE = Path.of(System.getenv("TAILRACE_CLIENT_DONE"));

    private final Map<String, Run> all = new LinkedHashMap<>();

    /** What it returns is shown; it throws if what was seen is wrong. */
    interface Run {
        Object run() throws Exception;
    }

    Scenarios add(String name, Run run) {
        all.put(name, run);
        return this;
    }

    /** Runs the scenarios (those named as arguments), and exits with code 1 if one failed. */
    void main(String... named) {
        List<String> names = Arrays.asList(named);
        boolean failed = false;
        for (Map.Entry<String, Run> each : all.entrySet()) {
            if (!names.isEmpty() && !names.contains(each.getKey())) continue;
            try {
                result(each.getKey(), true, cut(String.valueOf(each.getValue().run()), 300));
            } catch (Exception | AssertionError error) {
                failed = true;
                error.printStackTrace();
                result(each.getKey(), false, cut(error.toString(), 2000));
            }
        }
        System.exit(failed ? 1 : 0);
    }

    static void killWorker() {
        say("{\"kill\": \"worker\"}");
    }

    static void restartGateway() {
        ask("{\"restart\": \"gateway\"}");
    }

    static void emptyRedis() {
        ask("{\"empty\": \"redis\"}");
    }

    static void version(String text) {
        say("{\"version\": " + quoted(text) + "}");
    }

    static void check(boolean condition, Object... seen) {
        if (!condition) throw new AssertionError(Arrays.deepToString(seen));
    }

    static void same(Object a, Object b) {
        check(Objects.equals(a, b), a, b);
    }

    private static void result(String name, boolean ok, String saw) {
        say("{\"scenario\": " + quoted(name) + ", \"ok\": " + ok + ", \"saw\": " + quoted(saw) + "}");
    }

    private static void say(String line) {
        System.out.println(line);
    }

    /** Says it, and waits until the harness has done it. */
    private static void ask(String line) {
        long before = done();
        say(line);
        for (int waited = 0; done() == before; waited += 50) {
            check(waited < 60_000, line, "was not done");
            try {
                Thread.sleep(50);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static long done() {
        try {
            return Files.exists(DONE) ? Files.readAllLines(DONE).size() : 0;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static String cut(String text, int length) {
        return text.substring(0, Math.min(text.length(), length));
    }

    /** A JSON string, in ASCII. */
    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            boolean plain = each >= ' ' && each < 127 && each != '"' && each != '\\';
            out.append(plain ? String.valueOf(each) : String.format("\\u%04x", (int) each));
        }
        return out.append('"').toString();
    }
}
