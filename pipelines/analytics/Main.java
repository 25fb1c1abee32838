import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.StatementSet;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Submits files of SQL, each as one job: {@code Main TABLES JOB... [KEY=VALUE...] [:NAME=VALUE...]}.
 *
 * <p>TABLES is run before each job. Statements end with a semicolon at the end of a line; comments are
 * whole lines. All INSERTs of a file are one StatementSet, so they read a source once. KEY=VALUE are
 * settings of Flink. {@code ${NAME}} in a file is replaced; {@code ${kafka}}, whose value is an address as
 * in TAILRACE_KAFKA and by default that variable's, by the options of a table ({@link KafkaLogin}). A
 * job is FILE, or FILE@CHECKPOINT to go on from there. For each job it prints one line: {@code submitted
 * NAME JOB_ID}.
 */
public final class Main {
    private static final Pattern NAME = Pattern.compile("\\$\\{(\\w+)}");
    private static final Pattern SETTING = Pattern.compile("SET\\s+'(.+)'\\s*=\\s*'(.*)'");

    public static void main(String[] args) throws Exception {
        List<String> files = new ArrayList<>();
        Map<String, String> names = new LinkedHashMap<>();
        Configuration settings = new Configuration();
        for (String arg : args) {
            int equals = arg.indexOf('=');
            if (arg.startsWith(":")) {
                names.put(arg.substring(1, equals), arg.substring(equals + 1));
            } else if (equals > 0) {
                settings.setString(arg.substring(0, equals), arg.substring(equals + 1));
            } else {
                files.add(arg);
            }
        }
        String address = names.getOrDefault("kafka", System.getenv("TAILRACE_KAFKA"));
        if (address != null) {
            names.put("kafka", KafkaLogin.options(address));
        }
        for (String job : files.subList(1, files.size())) {
            int at = job.indexOf('@');
            Path file = Path.of(at < 0 ? job : job.substring(0, at));
            Configuration own = new Configuration(settings);
            String name = file.getFileName().toString().replace(".sql", "");
            own.setString("pipeline.name", name);
            if (at >= 0) {
                own.setString("execution.state-recovery.path", job.substring(at + 1));
            }
            submit(name, own, List.of(Path.of(files.get(0)), file), names);
        }
    }

    private static void submit(
            String name, Configuration settings, List<Path> files, Map<String, String> names)
            throws Exception {
        List<String> statements = new ArrayList<>();
        for (Path file : files) {
            for (String statement : statements(Files.readString(file), names)) {
                // Only Flink's own shell knows SET. The environment is made with these settings: some,
                // as the parallelism, have no effect on one that exists.
                Matcher setting = SETTING.matcher(statement);
                if (setting.matches()) {
                    settings.setString(setting.group(1), setting.group(2));
                } else {
                    statements.add(statement);
                }
            }
        }
        TableEnvironment tables =
                TableEnvironment.create(
                        EnvironmentSettings.newInstance()
                                .inStreamingMode()
                                .withConfiguration(settings)
                                .build());
        StatementSet inserts = tables.createStatementSet();
        for (String statement : statements) {
            if (statement.startsWith("INSERT ")) {
                inserts.addInsertSql(statement);
            } else {
                tables.executeSql(statement);
            }
        }
        TableResult submitted = inserts.execute();
        System.out.println("submitted " + name + " " + submitted.getJobClient().get().getJobID());
    }

    private static List<String> statements(String text, Map<String, String> names) {
        // In one pass: a value may hold a placeholder of Kafka's, which stays.
        text =
                NAME.matcher(text)
                        .replaceAll(
                                match -> {
                                    String value = names.get(match.group(1));
                                    if (value == null) {
                                        throw new IllegalArgumentException(
                                                "no value for " + match.group());
                                    }
                                    return Matcher.quoteReplacement(value);
                                });
        List<String> found = new ArrayList<>();
        for (String statement : text.replaceAll("(?m)^\\s*--.*$", "").split(";\\s*(\\n|\\z)")) {
            if (!statement.isBlank()) {
                found.add(statement.strip());
            }
        }
        return found;
    }
}
