import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;

/**
 * Kafka's address, as in TAILRACE_KAFKA, as the options of a table of Flink SQL.
 *
 * <p>The password is not among them, only where it is: Kafka's clients read the file themselves
 * (`config.providers`). So it is on no command line, in no job graph and in no checkpoint.
 */
final class KafkaLogin {
    // The connector's jar holds Kafka's client under names of its own.
    private static final String KAFKA = "org.apache.flink.kafka.shaded.org.apache.kafka.common.";
    private static final String SCHEME = "sasl+ssl://";

    /** Lines {@code 'properties.NAME' = 'VALUE'}, with commas between them. */
    static String options(String address) {
        StringJoiner lines = new StringJoiner(",\n  ");
        properties(address)
                .forEach(
                        (name, value) ->
                                lines.add(
                                        "'properties." + name + "' = '"
                                                + value.replace("'", "''") + "'"));
        return lines.toString();
    }

    private static Map<String, String> properties(String address) {
        Map<String, String> found = new LinkedHashMap<>();
        if (!address.contains("://")) {
            if (address.isEmpty() || address.contains("@") || address.contains("?")) {
                throw new IllegalArgumentException(
                        "expected host:port, or sasl+ssl://user@host:port"
                                + "?password_file=PATH&ca_file=PATH");
            }
            found.put("bootstrap.servers", address);
            return found;
        }
        int question = address.indexOf('?');
        int at = address.indexOf('@');
        if (!address.startsWith(SCHEME) || at < 0 || question < at) {
            throw new IllegalArgumentException("expected sasl+ssl://user@host:port?…");
        }
        String user = decoded(address.substring(SCHEME.length(), at));
        if (!user.matches("[\\w.-]+")) { // a colon would be followed by a password
            throw new IllegalArgumentException("expected a user of letters, digits, _ . and -");
        }
        Map<String, String> files = new LinkedHashMap<>();
        for (String option : address.substring(question + 1).split("&")) {
            int equals = option.indexOf('=');
            if (equals > 0) {
                files.put(option.substring(0, equals), decoded(option.substring(equals + 1)));
            }
        }
        if (files.size() != 2
                || !files.containsKey("password_file")
                || !files.containsKey("ca_file")) {
            throw new IllegalArgumentException("expected password_file and ca_file");
        }
        Path password = Path.of(files.get("password_file"));
        // Its parts stand in a placeholder of Kafka's, which has no escapes.
        if (!password.isAbsolute() || !password.toString().matches("[\\w./-]+")) {
            throw new IllegalArgumentException("expected a plain absolute path as password_file");
        }
        found.put("bootstrap.servers", address.substring(at + 1, question).replaceFirst("/$", ""));
        found.put("security.protocol", "SASL_SSL");
        found.put("sasl.mechanism", "SCRAM-SHA-512");
        found.put("config.providers", "directory");
        found.put(
                "config.providers.directory.class",
                KAFKA + "config.provider.DirectoryConfigProvider");
        found.put(
                "sasl.jaas.config",
                KAFKA + "security.scram.ScramLoginModule required username=\"" + user
                        + "\" password=\"${directory:" + password.getParent() + ":"
                        + password.getFileName() + "}\";");
        found.put("ssl.truststore.type", "PEM");
        found.put("ssl.truststore.location", files.get("ca_file"));
        return found;
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    private KafkaLogin() {}

    /** Print the options of each address, or why it is refused, for tests. */
    public static void main(String[] addresses) {
        for (String address : addresses) {
            try {
                System.out.println(options(address));
            } catch (IllegalArgumentException wrong) {
                System.out.println("refused: " + wrong.getMessage());
            }
            System.out.println();
        }
    }
}
