import com.fasterxml.jackson.databind.JsonNode;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.core.MultipartField;
import com.openai.core.http.HttpResponse;
import com.openai.core.http.ResponseConnection;
import com.openai.core.http.StreamResponse;
import com.openai.errors.BadRequestException;
import com.openai.errors.NotFoundException;
import com.openai.errors.OpenAIServiceException;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.helpers.ResponseAccumulator;
import com.openai.models.FunctionDefinition;
import com.openai.models.FunctionParameters;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionFunctionTool;
import com.openai.models.chat.completions.ChatCompletionMessage;
import com.openai.models.chat.completions.ChatCompletionToolMessageParam;
import com.openai.models.conversations.ConversationCreateParams;
import com.openai.models.conversations.ConversationUpdateParams;
import com.openai.models.conversations.items.ConversationItem;
import com.openai.models.conversations.items.ConversationItemList;
import com.openai.models.conversations.items.ItemCreateParams;
import com.openai.models.conversations.items.ItemDeleteParams;
import com.openai.models.conversations.items.ItemListParams;
import com.openai.models.conversations.items.ItemRetrieveParams;
import com.openai.models.files.FileCreateParams;
import com.openai.models.files.FileObject;
import com.openai.models.files.FilePurpose;
import com.openai.models.responses.EasyInputMessage;
import com.openai.models.responses.FunctionTool;
import com.openai.models.responses.Response;
import com.openai.models.responses.ResponseCreateParams;
import com.openai.models.responses.ResponseFunctionToolCall;
import com.openai.models.responses.ResponseInputContent;
import com.openai.models.responses.ResponseInputFile;
import com.openai.models.responses.ResponseInputItem;
import com.openai.models.responses.ResponseInputText;
import com.openai.models.responses.ResponseOutputItem;
import com.openai.models.responses.ResponseRetrieveParams;
import com.openai.models.responses.ResponseStreamEvent;
import com.openai.models.responses.ResponsesClientEvent;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/** openai-java: text, streams and their resumption, tools, uploads, conversations, the socket. */
final class Client {
    private static final OpenAIClient CLIENT = OpenAIOkHttpClient.builder()
            .baseUrl(Scenarios.BASE)
            .apiKey(Scenarios.KEY)
            .maxRetries(0)
            .timeout(Duration.ofSeconds(90))
            .build();
    private static final Map<String, Object> PARAMETERS = Map.of(
            "type", "object",
            "properties", Map.of("city", Map.of("type", "string")),
            "required", List.of("city"),
            "additionalProperties", false);
    private static final String LONG_ANSWER = "say 120"; // so many tokens
    private static final String QUOTED = "“hello there”"; // in the answer to it
    private static final String RIVER = "The river is long.\n";

    // ---- requests

    private static Map<String, JsonValue> values(Map<String, Object> of) {
        return of.entrySet().stream()
                .collect(Collectors.toMap(Map.Entry::getKey, each -> JsonValue.from(each.getValue())));
    }

    private static FunctionTool tool() {
        return FunctionTool.builder()
                .name("get_weather")
                .parameters(FunctionTool.Parameters.builder().additionalProperties(values(PARAMETERS)).build())
                .strict(true)
                .build();
    }

    private static ResponseCreateParams.Builder plain() {
        return ResponseCreateParams.builder().model(Scenarios.MODEL);
    }

    private static ResponseCreateParams.Builder asking(String input) {
        return plain().input(input).addTool(tool());
    }

    private static ResponseInputItem output(String callId, String said) {
        return ResponseInputItem.ofFunctionCallOutput(
                ResponseInputItem.FunctionCallOutput.builder().callId(callId).output(said).build());
    }

    private static ResponseInputItem message(EasyInputMessage.Role role, String content) {
        return ResponseInputItem.ofEasyInputMessage(
                EasyInputMessage.builder().role(role).content(content).build());
    }

    // ---- answers

    private static String text(Response response) {
        return response.output().stream()
                .filter(ResponseOutputItem::isMessage)
                .flatMap(item -> item.asMessage().content().stream())
                .map(part -> part.asOutputText().text())
                .collect(Collectors.joining());
    }

    private static ResponseFunctionToolCall theCall(Response response) {
        List<ResponseFunctionToolCall> calls = response.output().stream()
                .filter(ResponseOutputItem::isFunctionCall)
                .map(ResponseOutputItem::asFunctionCall)
                .collect(Collectors.toList());
        Scenarios.same(calls.size(), 1);
        return calls.get(0);
    }

    private static <T extends OpenAIServiceException> T refusal(Class<T> kind, Callable<?> asked) throws Exception {
        try {
            throw new AssertionError(asked.call());
        } catch (OpenAIServiceException error) {
            return kind.cast(error);
        }
    }

    /** What was seen of a stream. Its numbers are dense. */
    private static final class Transcript {
        String deltas = "";
        String id;
        long last;
        Response end;
    }

    /** Reads from event number {@code first} to the end, or until {@code stop} says so after an event. */
    private static Transcript read(StreamResponse<ResponseStreamEvent> events, long first, Predicate<Transcript> stop) {
        Transcript seen = new Transcript();
        seen.last = first - 1;
        ResponseAccumulator whole = ResponseAccumulator.create();
        try (events) {
            for (ResponseStreamEvent event : (Iterable<ResponseStreamEvent>) events.stream()::iterator) {
                if (first == 0) whole.accumulate(event);
                JsonNode json = event._json().orElseThrow().convert(JsonNode.class);
                Scenarios.same(json.get("sequence_number").longValue(), seen.last + 1);
                seen.last += 1;
                if (event.isCreated()) seen.id = event.asCreated().response().id();
                if (event.isOutputTextDelta()) seen.deltas += event.asOutputTextDelta().delta();
                if (event.isFunctionCallArgumentsDelta()) seen.deltas += event.asFunctionCallArgumentsDelta().delta();
                if (event.isCompleted()) seen.end = event.asCompleted().response();
                Scenarios.check(!event.isError() && !event.isFailed(), event);
                if (stop.test(seen)) return seen;
            }
        }
        Scenarios.check(seen.end != null, "no end after", seen.last);
        if (first == 0) Scenarios.same(whole.response(), seen.end);
        return seen;
    }

    private static Transcript read(StreamResponse<ResponseStreamEvent> events) {
        return read(events, 0, seen -> false);
    }

    private static Transcript resume(String id, long after) {
        ResponseRetrieveParams from = ResponseRetrieveParams.builder().startingAfter(after).build();
        return read(CLIENT.responses().retrieveStreaming(id, from), after + 1, seen -> false);
    }

    // ---- scenarios

    private static Object plainText() throws Exception {
        Response response = CLIENT.responses().create(plain().input("hello there").build());
        Scenarios.check(text(response).contains(QUOTED), response);
        Scenarios.check(response.usage().orElseThrow().totalTokens() > 0, response);
        Scenarios.same(CLIENT.responses().retrieve(response.id()), response);
        Scenarios.same(CLIENT.responses().inputItems().list(response.id()).data().size(), 1);
        CLIENT.responses().delete(response.id());
        return refusal(NotFoundException.class, () -> CLIENT.responses().retrieve(response.id())).getMessage();
    }

    private static Object aStream() {
        Transcript seen = read(CLIENT.responses().createStreaming(plain().input("hello there").build()));
        Scenarios.check(seen.deltas.contains(QUOTED), seen.deltas);
        Scenarios.same(text(seen.end), seen.deltas);
        return seen.last;
    }

    private static Object aStreamResumed() {
        Transcript before = read(
                CLIENT.responses().createStreaming(asking(LONG_ANSWER).build()), 0, seen -> seen.deltas.length() > 60);
        Scenarios.check(before.end == null, "it ended too early");
        Transcript after = resume(before.id, before.last);
        Scenarios.same(before.deltas + after.deltas, text(after.end));
        Transcript again = read(CLIENT.responses().retrieveStreaming(before.id));
        Scenarios.same(again.deltas, text(after.end));
        Scenarios.same(again.last, after.last);
        return after.deltas.length();
    }

    private static Object aStreamInTheBackgroundResumed() {
        Response made = CLIENT.responses().create(asking(LONG_ANSWER).background(true).build());
        Scenarios.restartGateway();
        // It writes a GET to a kept connection whose end it has not noticed.
        OpenAIClient again = CLIENT.withOptions(options -> options.maxRetries(1));
        Transcript whole = read(again.responses().retrieveStreaming(made.id()));
        Scenarios.same(whole.deltas, text(whole.end));
        Scenarios.same(resume(made.id(), whole.last - 3).end, whole.end);
        return whole.deltas.length();
    }

    private static Object aCallItsOutputAndAnAnswer() {
        Response first = CLIENT.responses().create(asking(Scenarios.WEATHER).build());
        ResponseFunctionToolCall call = theCall(first);
        Scenarios.same(call.name(), "get_weather");
        Scenarios.same(call.arguments(Map.class), Map.of("city", "Paris"));
        Response second = CLIENT.responses()
                .create(plain().addTool(tool())
                        .previousResponseId(first.id())
                        .inputOfResponse(List.of(output(call.callId(), "21 degrees")))
                        .build());
        Scenarios.check(text(second).contains("21 degrees"), second);
        return text(second);
    }

    private static Object itemsSentBackWithoutStorage() {
        Response first = CLIENT.responses().create(asking(Scenarios.WEATHER).store(false).build());
        ResponseFunctionToolCall call = theCall(first);
        List<ResponseInputItem> history = List.of(
                message(EasyInputMessage.Role.USER, "the weather?"),
                ResponseInputItem.ofFunctionCall(call),
                output(call.callId(), "hail"));
        Response second = CLIENT.responses()
                .create(plain().addTool(tool()).store(false).inputOfResponse(history).build());
        Scenarios.check(text(second).contains("hail"), second);
        return text(second);
    }

    private static Object aWorkerKilledInAToolCall() {
        ResponseCreateParams asked = asking(Scenarios.LONG_CALL).build();
        String quiet = theCall(CLIENT.responses().create(asked)).arguments();
        boolean[] killed = {false};
        Transcript seen = read(CLIENT.responses().createStreaming(asked), 0, each -> {
            if (!killed[0] && each.deltas.length() > 60) {
                killed[0] = true;
                Scenarios.killWorker();
            }
            return false;
        });
        Scenarios.same(seen.deltas, quiet);
        Scenarios.same(theCall(seen.end).arguments(), quiet);
        return quiet.length();
    }

    private static Object chatStreamedToolCalls() {
        FunctionDefinition function = FunctionDefinition.builder()
                .name("get_weather")
                .parameters(FunctionParameters.builder().additionalProperties(values(PARAMETERS)).build())
                .build();
        ChatCompletionCreateParams.Builder asked = ChatCompletionCreateParams.builder()
                .model(Scenarios.MODEL)
                .addUserMessage(Scenarios.WEATHER)
                .addTool(ChatCompletionFunctionTool.builder().function(function).build());
        ChatCompletionAccumulator whole = ChatCompletionAccumulator.create();
        try (StreamResponse<ChatCompletionChunk> chunks = CLIENT.chat().completions().createStreaming(asked.build())) {
            chunks.stream().forEach(whole::accumulate);
        }
        ChatCompletionMessage first = whole.chatCompletion().choices().get(0).message();
        String id = first.toolCalls().orElseThrow().get(0).asFunction().id();
        asked.addMessage(first);
        asked.addMessage(ChatCompletionToolMessageParam.builder().toolCallId(id).content("snow").build());
        String second = CLIENT.chat().completions().create(asked.build()).choices().get(0).message().content().orElseThrow();
        Scenarios.check(second.contains("snow"), second);
        return second;
    }

    /** Uploads, asks about the file and deletes it. Returns the name that the server gave it. */
    private static String upload(FileCreateParams.Builder file) throws Exception {
        FileObject made = CLIENT.files().create(file.purpose(FilePurpose.USER_DATA).build());
        Scenarios.check(CLIENT.files().list().autoPager().stream().anyMatch(each -> each.id().equals(made.id())), made);
        try (HttpResponse content = CLIENT.files().content(made.id())) {
            Scenarios.same(new String(content.body().readAllBytes(), StandardCharsets.UTF_8), RIVER);
        }
        ResponseInputItem question = ResponseInputItem.ofEasyInputMessage(EasyInputMessage.builder()
                .role(EasyInputMessage.Role.USER)
                .contentOfResponseInputMessageContentList(List.of(
                        ResponseInputContent.ofInputText(ResponseInputText.builder().text("How long?").build()),
                        ResponseInputContent.ofInputFile(ResponseInputFile.builder().fileId(made.id()).build())))
                .build());
        ResponseCreateParams asked = plain().inputOfResponse(List.of(question)).build();
        Response answer = CLIENT.responses().create(asked);
        String shown = CLIENT.responses().inputItems().list(answer.id()).data().toString();
        Scenarios.check(shown.contains("File " + made.filename() + ":\n" + RIVER.trim()), shown);
        Scenarios.check(CLIENT.files().delete(made.id()).deleted(), made);
        BadRequestException refused = refusal(BadRequestException.class, () -> CLIENT.responses().create(asked));
        Scenarios.check(refused.param().orElseThrow().startsWith("input"), refused);
        return made.filename();
    }

    private static Object uploadANamedFile() throws Exception {
        MultipartField<InputStream> field = MultipartField.<InputStream>builder()
                .value(new ByteArrayInputStream(RIVER.getBytes(StandardCharsets.UTF_8)))
                .filename("river.txt")
                .contentType("text/plain")
                .build();
        String name = upload(FileCreateParams.builder().file(field));
        Scenarios.same(name, "river.txt");
        return name;
    }

    /** The part has no filename at all; its type is application/octet-stream. */
    private static Object uploadBytesWithoutAName() throws Exception {
        return upload(FileCreateParams.builder().file(RIVER.getBytes(StandardCharsets.UTF_8)));
    }

    private static Object uploadAStreamWithoutAName() throws Exception {
        InputStream stream = new ByteArrayInputStream(RIVER.getBytes(StandardCharsets.UTF_8));
        return upload(FileCreateParams.builder().file(stream));
    }

    private static String kind(ConversationItem item) {
        if (item.isFunctionCall()) return "call";
        if (item.isFunctionCallOutput()) return "output";
        return item.isMessage() ? "message" : "other";
    }

    private static Object aConversationInSeveralTurns() throws Exception {
        JsonValue rain = JsonValue.from("rain");
        String made = CLIENT.conversations()
                .create(ConversationCreateParams.builder()
                        .metadata(ConversationCreateParams.Metadata.builder().putAdditionalProperty("topic", rain).build())
                        .items(List.of(message(EasyInputMessage.Role.DEVELOPER, "Be brief.")))
                        .build())
                .id();
        Response first = CLIENT.responses().create(asking(Scenarios.WEATHER).conversation(made).build());
        Scenarios.same(first.conversation().orElseThrow().id(), made);
        Scenarios.restartGateway();
        List<ResponseInputItem> fog = List.of(output(theCall(first).callId(), "21 degrees"));
        String second = text(read(CLIENT.responses()
                .createStreaming(plain().addTool(tool()).conversation(made).inputOfResponse(fog).build())).end);
        Scenarios.check(second.contains("21 degrees"), second);
        Scenarios.emptyRedis();
        ItemListParams pages = ItemListParams.builder().limit(2).order(ItemListParams.Order.ASC).build();
        List<ConversationItem> items = new ArrayList<>();
        CLIENT.conversations().items().list(made, pages).autoPager().forEach(items::add);
        Scenarios.same(
                items.stream().map(Client::kind).collect(Collectors.toList()),
                List.of("message", "message", "call", "output", "message"));
        ConversationItemList added = CLIENT.conversations().items()
                .create(made, ItemCreateParams.builder().addItem(message(EasyInputMessage.Role.USER, "one more")).build());
        ItemRetrieveParams one = ItemRetrieveParams.builder().conversationId(made).build();
        Scenarios.same(CLIENT.conversations().items().retrieve(added.firstId(), one), added.data().get(0));
        String oldest = items.get(0).asMessage().id();
        CLIENT.conversations().items().delete(oldest, ItemDeleteParams.builder().conversationId(made).build());
        List<ConversationItem> left = CLIENT.conversations().items().list(made).data();
        Scenarios.same(left.size(), items.size());
        Scenarios.same(left.get(0), added.data().get(0));
        ConversationUpdateParams.Metadata sun =
                ConversationUpdateParams.Metadata.builder().putAdditionalProperty("topic", JsonValue.from("sun")).build();
        CLIENT.conversations().update(made, ConversationUpdateParams.builder().metadata(sun).build());
        String kept = CLIENT.conversations().retrieve(made).toString();
        Scenarios.check(kept.contains("topic=sun"), kept);
        Scenarios.check(CLIENT.conversations().delete(made).deleted(), made);
        return refusal(
                        NotFoundException.class,
                        () -> CLIENT.responses().create(plain().input("more").conversation(made).build()))
                .code();
    }

    private static Object aConversationThatIsLocked() {
        String made = CLIENT.conversations().create().id();
        OpenAIServiceException[] refused = {null};
        ResponseCreateParams asked = asking(Scenarios.LONG_CALL).conversation(made).build();
        read(CLIENT.responses().createStreaming(asked), 0, seen -> {
            if (refused[0] == null) {
                try {
                    refused[0] = refusal(
                            BadRequestException.class,
                            () -> CLIENT.responses().create(plain().input("now").conversation(made).build()));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
            return false;
        });
        Scenarios.same(refused[0].code().orElseThrow(), "conversation_locked");
        return refused[0].getMessage();
    }

    private static ResponsesClientEvent.ResponseCreate.Builder onSocket() {
        return ResponsesClientEvent.ResponseCreate.builder().model(Scenarios.MODEL).streamId("main").addTool(tool());
    }

    private static Object aSocketWithTools() {
        try (ResponseConnection socket = CLIENT.responses().connect()) {
            ResponseConnection.Lane lane = socket.lane("main");
            lane.send(ResponsesClientEvent.ofResponseCreate(onSocket().input(Scenarios.WEATHER).build()));
            Response first = lane.finalResponse();
            lane.send(ResponsesClientEvent.ofResponseCreate(onSocket()
                    .previousResponseId(first.id())
                    .inputOfResponse(List.of(output(theCall(first).callId(), "fog")))
                    .build()));
            Response second = lane.finalResponse();
            Scenarios.check(text(second).contains("fog"), second);
            return text(second);
        }
    }

    public static void main(String[] named) {
        new Scenarios()
                .add("plain text", Client::plainText)
                .add("a stream", Client::aStream)
                .add("a stream resumed", Client::aStreamResumed)
                .add("a stream in the background resumed", Client::aStreamInTheBackgroundResumed)
                .add("a call, its output and an answer", Client::aCallItsOutputAndAnAnswer)
                .add("items sent back without storage", Client::itemsSentBackWithoutStorage)
                .add("chat: streamed tool calls", Client::chatStreamedToolCalls)
                .add("upload a named file and ask about it", Client::uploadANamedFile)
                .add("upload bytes without a name and ask about them", Client::uploadBytesWithoutAName)
                .add("upload a stream without a name and ask about it", Client::uploadAStreamWithoutAName)
                .add("a conversation in several turns", Client::aConversationInSeveralTurns)
                .add("a conversation that is locked", Client::aConversationThatIsLocked)
                .add("a socket with tools", Client::aSocketWithTools)
                .add("a worker killed in a tool call", Client::aWorkerKilledInAToolCall)
                .main(named);
    }
}
