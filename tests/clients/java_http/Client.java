import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.WebSocket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.GZIPOutputStream;

/** The JDK's client with its defaults: on plain HTTP its first request offers an upgrade to HTTP/2. */
final class Client {
    private static final String SAY = body("hello there", "");

    private static final String QUOTED = "“hello there”"; // in the answer

    /** The message of an answer. */
    private static String text(String answer) {
        List<String> texts = values("text", answer);
        Scenarios.same(texts.size(), 1);
        return texts.get(0);
    }

    /** Sends what asks to say hello, which must be answered with it. */
    private static void says(HttpClient client, HttpRequest request) throws Exception {
        String text = text(sent(client, request));
        Scenarios.check(text.contains(QUOTED), text);
    }

    /** A new client for each scenario: only the first request of a connection has the offer. */
    private static HttpClient client() {
        return HttpClient.newHttpClient();
    }

    private static String body(String input, String more) {
        return "{\"model\": \"" + Scenarios.MODEL + "\", \"input\": \"" + input + "\"" + more + "}";
    }

    private static HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(Scenarios.BASE + path))
                .timeout(Duration.ofSeconds(90))
                .header("Authorization", "Bearer " + Scenarios.KEY)
                .header("Content-Type", "application/json");
    }

    private static HttpRequest post(String path, String body) {
        return request(path).POST(BodyPublishers.ofString(body)).build();
    }

    /** The answer's body. It must be a success, over HTTP/1.1. */
    private static String sent(HttpClient client, HttpRequest request) throws Exception {
        HttpResponse<String> answer = client.send(request, BodyHandlers.ofString());
        Scenarios.check(answer.statusCode() == 200, answer, answer.body());
        Scenarios.same(answer.version(), HttpClient.Version.HTTP_1_1);
        return answer.body();
    }

    private static List<String> values(String name, String json) {
        Matcher matcher = Pattern.compile("\"" + name + "\": ?\"([^\"]*)\"").matcher(json);
        return matcher.results().map(each -> each.group(1)).collect(Collectors.toList());
    }

    private static Object aBody() throws Exception {
        says(client(), post("/responses", SAY));
        return "its length is known";
    }

    private static Object aBodyOfUnknownLength() throws Exception {
        byte[] bytes = SAY.getBytes(StandardCharsets.UTF_8);
        HttpRequest request = request("/responses")
                .POST(BodyPublishers.fromPublisher(BodyPublishers.ofByteArray(bytes)))
                .build();
        says(client(), request);
        return "in chunks";
    }

    private static Object aConversation() throws Exception {
        String item = "{\"type\": \"message\", \"role\": \"user\", \"content\": \"hello\"}";
        String body = "{\"metadata\": {\"topic\": \"rain\"}, \"items\": [" + item + "]}";
        String made = sent(client(), post("/conversations", body));
        Scenarios.same(values("topic", made), List.of("rain"));
        String id = values("id", made).get(0);
        String items = sent(client(), request("/conversations/" + id + "/items").GET().build());
        Scenarios.same(values("text", items), List.of("hello"));
        says(client(), post("/responses", body("hello there", ", \"conversation\": \"" + id + "\"")));
        sent(client(), request("/conversations/" + id).DELETE().build());
        return id;
    }

    private static Object aStream() throws Exception {
        HttpRequest request = post("/responses", body("hello there", ", \"stream\": true"));
        HttpResponse<java.util.stream.Stream<String>> answer = client().send(request, BodyHandlers.ofLines());
        Scenarios.same(answer.version(), HttpClient.Version.HTTP_1_1);
        List<String> events = answer.body()
                .filter(line -> line.startsWith("data: {"))
                .collect(Collectors.toList());
        String text = events.stream()
                .filter(each -> each.contains("\"response.output_text.delta\""))
                .flatMap(each -> values("delta", each).stream())
                .collect(Collectors.joining());
        Scenarios.check(text.contains(QUOTED), text);
        Pattern number = Pattern.compile("\"sequence_number\": ?(\\d+)");
        List<Integer> numbers = new ArrayList<>();
        for (String each : events) {
            Matcher matcher = number.matcher(each);
            Scenarios.check(matcher.find(), each);
            numbers.add(Integer.valueOf(matcher.group(1)));
        }
        Scenarios.same(numbers, IntStream.range(0, numbers.size()).boxed().collect(Collectors.toList()));
        String last = events.get(events.size() - 1);
        Scenarios.check(last.contains("\"response.completed\""), last);
        return events.size() + " events";
    }

    private static Object oneClientForAll() throws Exception {
        HttpClient client = client();
        for (int i = 0; i < 3; i++) {
            says(client, post("/responses", SAY));
            Scenarios.check(sent(client, request("/models").GET().build()).contains(Scenarios.MODEL), i);
        }
        return "6 requests";
    }

    private static Object manyAtOnce() throws Exception {
        HttpClient client = client();
        List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            answers.add(client.sendAsync(post("/responses", body("number " + i, "")), BodyHandlers.ofString()));
        }
        for (int i = 0; i < answers.size(); i++) {
            HttpResponse<String> answer = answers.get(i).get(90, TimeUnit.SECONDS);
            Scenarios.check(text(answer.body()).contains("“number " + i + "”"), answer.body());
        }
        return answers.size() + " answers";
    }

    private static Object aBodyInGzip() throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (GZIPOutputStream out = new GZIPOutputStream(bytes)) {
            out.write(SAY.getBytes(StandardCharsets.UTF_8));
        }
        HttpRequest request = request("/responses")
                .header("Content-Encoding", "gzip")
                .POST(BodyPublishers.ofByteArray(bytes.toByteArray()))
                .build();
        says(client(), request);
        return bytes.size() + " bytes";
    }

    private static Object withoutACredential() throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(Scenarios.BASE + "/responses"))
                .POST(BodyPublishers.ofString(SAY))
                .build();
        HttpResponse<String> answer = client().send(request, BodyHandlers.ofString());
        Scenarios.check(answer.statusCode() == 401, answer, answer.body());
        return values("code", answer.body());
    }

    private static Object head() throws Exception {
        HttpRequest request = request("/models").method("HEAD", BodyPublishers.noBody()).build();
        Scenarios.same(sent(client(), request), "");
        return "no body";
    }

    private static Object aSocket() throws Exception {
        CompletableFuture<String> end = new CompletableFuture<>();
        WebSocket.Listener listener = new WebSocket.Listener() {
            private final StringBuilder message = new StringBuilder();

            @Override
            public CompletionStage<?> onText(WebSocket socket, CharSequence text, boolean last) {
                message.append(text);
                if (last) {
                    String event = message.toString();
                    message.setLength(0);
                    String type = values("type", event).get(0);
                    if (type.equals("response.completed") || type.equals("error")) end.complete(event);
                }
                socket.request(1);
                return null;
            }

            @Override
            public void onError(WebSocket socket, Throwable error) {
                end.completeExceptionally(error);
            }
        };
        URI address = URI.create(Scenarios.BASE.replaceFirst("http", "ws") + "/responses");
        WebSocket socket = client().newWebSocketBuilder()
                .header("Authorization", "Bearer " + Scenarios.KEY)
                .buildAsync(address, listener)
                .get(90, TimeUnit.SECONDS);
        socket.sendText(body("hello there", ", \"type\": \"response.create\""), true);
        String event = end.get(90, TimeUnit.SECONDS);
        Scenarios.check(text(event).contains(QUOTED), event);
        socket.sendClose(WebSocket.NORMAL_CLOSURE, "").get(90, TimeUnit.SECONDS);
        return values("type", event).get(0);
    }

    public static void main(String[] named) {
        Scenarios.version("Java " + Runtime.version().feature());
        new Scenarios()
                .add("a body", Client::aBody)
                .add("a body of unknown length", Client::aBodyOfUnknownLength)
                .add("a body in gzip", Client::aBodyInGzip)
                .add("a conversation", Client::aConversation)
                .add("a stream", Client::aStream)
                .add("one client for several requests", Client::oneClientForAll)
                .add("several requests at once", Client::manyAtOnce)
                .add("HEAD", Client::head)
                .add("without a credential", Client::withoutACredential)
                .add("a socket", Client::aSocket)
                .main(named);
    }
}
