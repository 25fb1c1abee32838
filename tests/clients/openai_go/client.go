// openai-go: text, streams and their resumption, tools, uploads, conversations, the socket.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/conversations"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
)

var (
	ctx    = context.Background()
	client = openai.NewClient(
		option.WithBaseURL(base), option.WithAPIKey(key),
		option.WithMaxRetries(0), option.WithRequestTimeout(90*time.Second),
	)
	parameters = map[string]any{
		"type":                 "object",
		"properties":           map[string]any{"city": map[string]any{"type": "string"}},
		"required":             []string{"city"},
		"additionalProperties": false,
	}
	tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", parameters, true)}
)

type events = ssestream.Stream[responses.ResponseStreamEventUnion]

func text(input string) responses.ResponseNewParamsInputUnion {
	return responses.ResponseNewParamsInputUnion{OfString: openai.String(input)}
}

func items(each ...responses.ResponseInputItemUnionParam) responses.ResponseNewParamsInputUnion {
	return responses.ResponseNewParamsInputUnion{OfInputItemList: each}
}

func message(content, role string) responses.ResponseInputItemUnionParam {
	return responses.ResponseInputItemParamOfMessage(content, responses.EasyInputMessageRole(role))
}

func output(callID, said string) responses.ResponseInputItemUnionParam {
	item := responses.ResponseInputItemParamOfFunctionCallOutput(said)
	item.OfFunctionCallOutput.CallID = openai.String(callID)
	return item
}

// An item of an answer as input, member by member as it came.
func sentBack(item responses.ResponseOutputItemUnion) responses.ResponseInputItemUnionParam {
	return param.Override[responses.ResponseInputItemUnionParam](json.RawMessage(item.RawJSON()))
}

func theCall(response *responses.Response) responses.ResponseFunctionToolCall {
	calls := []responses.ResponseFunctionToolCall{}
	for _, item := range response.Output {
		if item.Type == "function_call" {
			calls = append(calls, item.AsFunctionCall())
		}
	}
	check(len(calls) == 1, response.RawJSON())
	return calls[0]
}

func decoded(text string) (value map[string]any) {
	must(json.Unmarshal([]byte(text), &value))
	return value
}

func refusal(err error) *openai.Error {
	var refused *openai.Error
	check(errors.As(err, &refused), err)
	return refused
}

// What was seen of a stream. Its numbers are dense from the given one on.
type transcript struct {
	deltas string
	last   int64
	final  *responses.Response
}

// Reads to the end, or until stop says so after an event.
func read(stream *events, first int64, stop func(*transcript) bool) transcript {
	defer stream.Close()
	seen := transcript{last: first - 1}
	for stream.Next() {
		event := stream.Current()
		check(event.SequenceNumber == seen.last+1, event.RawJSON(), "after", seen.last)
		seen.last = event.SequenceNumber
		switch event.Type {
		case "response.output_text.delta", "response.function_call_arguments.delta":
			seen.deltas += event.Delta
		case "response.completed":
			seen.final = &event.Response
		case "error", "response.failed", "response.incomplete":
			check(false, event.RawJSON())
		}
		if stop(&seen) {
			return seen
		}
	}
	must(stream.Err())
	check(seen.final != nil, "no end after", seen.last)
	return seen
}

func never(*transcript) bool { return false }

func plainText() any {
	response := ok(client.Responses.New(ctx, responses.ResponseNewParams{Model: model, Input: text("hello there")}))
	check(strings.Contains(response.OutputText(), "“hello there”"), response.RawJSON())
	check(response.Usage.TotalTokens > 0, response.RawJSON())
	stored := ok(client.Responses.Get(ctx, response.ID, responses.ResponseGetParams{}))
	same(stored.OutputText(), response.OutputText())
	listed := ok(client.Responses.InputItems.List(ctx, response.ID, responses.InputItemListParams{}))
	same(len(listed.Data), 1)
	must(client.Responses.Delete(ctx, response.ID))
	_, err := client.Responses.Get(ctx, response.ID, responses.ResponseGetParams{})
	same(refusal(err).StatusCode, http.StatusNotFound)
	return refusal(err).Message
}

func aStream() any {
	asked := responses.ResponseNewParams{Model: model, Input: text("hello there")}
	seen := read(client.Responses.NewStreaming(ctx, asked), 0, never)
	check(strings.Contains(seen.deltas, "“hello there”"), seen.deltas)
	same(seen.final.OutputText(), seen.deltas)
	return seen.last
}

func longAnswer() responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: model, Input: text("say 120"), Tools: tools}
}

// GetStreaming says that it wants a stream in the body of its GET, the position in the query.
func resume(id string, after int64) transcript {
	from := responses.ResponseGetParams{StartingAfter: openai.Int(after)}
	return read(client.Responses.GetStreaming(ctx, id, from), after+1, never)
}

func aStreamResumed() any {
	id := ""
	stream := client.Responses.NewStreaming(ctx, longAnswer())
	check(stream.Next(), stream.Err())
	id = stream.Current().Response.ID
	before := read(stream, 1, func(seen *transcript) bool { return len(seen.deltas) > 60 })
	check(before.final == nil, "it ended too early")
	after := resume(id, before.last)
	same(before.deltas+after.deltas, after.final.OutputText())
	again := read(client.Responses.GetStreaming(ctx, id, responses.ResponseGetParams{}), 0, never)
	same(again.deltas, after.final.OutputText())
	same(again.last, after.last)
	return len(after.deltas)
}

func aStreamInTheBackgroundResumed() any {
	asked := longAnswer()
	asked.Background = openai.Bool(true)
	made := ok(client.Responses.New(ctx, asked))
	restartGateway()
	whole := read(client.Responses.GetStreaming(ctx, made.ID, responses.ResponseGetParams{}), 0, never)
	same(whole.deltas, whole.final.OutputText())
	rest := resume(made.ID, whole.last-3)
	same(rest.final.RawJSON(), whole.final.RawJSON())
	return len(whole.deltas)
}

func aCallItsOutputAndAnAnswer() any {
	first := ok(client.Responses.New(ctx, responses.ResponseNewParams{Model: model, Input: text(weather), Tools: tools}))
	call := theCall(first)
	same(call.Name, "get_weather")
	same(decoded(call.Arguments), map[string]any{"city": "Paris"})
	second := ok(client.Responses.New(ctx, responses.ResponseNewParams{
		Model: model, Tools: tools, PreviousResponseID: openai.String(first.ID),
		Input: items(output(call.CallID, "21 degrees")),
	}))
	check(strings.Contains(second.OutputText(), "21 degrees"), second.RawJSON())
	return second.OutputText()
}

func itemsSentBackWithoutStorage() any {
	asked := responses.ResponseNewParams{
		Model: model, Tools: tools, Store: openai.Bool(false),
		Input:     text("think of it\n" + weather),
		Reasoning: openai.ReasoningParam{Effort: "low", Summary: "auto"},
		Include:   []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent},
	}
	first := ok(client.Responses.New(ctx, asked))
	same(first.Output[0].Type, "reasoning")
	check(first.Output[0].EncryptedContent != "", first.RawJSON())
	history := []responses.ResponseInputItemUnionParam{message("the weather?", "user")}
	for _, item := range first.Output {
		history = append(history, sentBack(item))
	}
	asked.Input = items(append(history, output(theCall(first).CallID, "hail"))...)
	second := ok(client.Responses.New(ctx, asked))
	check(strings.Contains(second.OutputText(), "hail"), second.RawJSON())
	return second.OutputText()
}

func aWorkerKilledInAToolCall() any {
	asked := responses.ResponseNewParams{Model: model, Input: text(longCall), Tools: tools}
	quiet := theCall(ok(client.Responses.New(ctx, asked))).Arguments
	killed := false
	seen := read(client.Responses.NewStreaming(ctx, asked), 0, func(seen *transcript) bool {
		if !killed && len(seen.deltas) > 60 {
			killed = true
			killWorker()
		}
		return false
	})
	same(seen.deltas, quiet)
	same(theCall(seen.final).Arguments, quiet)
	return len(quiet)
}

func chatStreamedToolCalls() any {
	asked := openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(weather)},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(
			openai.FunctionDefinitionParam{Name: "get_weather", Parameters: parameters},
		)},
	}
	stream := client.Chat.Completions.NewStreaming(ctx, asked)
	defer stream.Close()
	whole := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		check(whole.AddChunk(stream.Current()), stream.Current().RawJSON())
	}
	must(stream.Err())
	first := whole.Choices[0].Message
	same(decoded(first.ToolCalls[0].Function.Arguments), map[string]any{"city": "Paris"})
	asked.Messages = append(asked.Messages, first.ToParam(), openai.ToolMessage("snow", first.ToolCalls[0].ID))
	second := ok(client.Chat.Completions.New(ctx, asked)).Choices[0].Message.Content
	check(strings.Contains(second, "snow"), second)
	return second
}

// Uploads, asks about the file, and deletes it. The name is what the server shows.
func upload(file io.Reader, name string) string {
	made := ok(client.Files.New(ctx, openai.FileNewParams{File: file, Purpose: openai.FilePurposeUserData}))
	same(made.Filename, name)
	for made.Status == "uploaded" {
		made = ok(client.Files.Get(ctx, made.ID))
	}
	found := false
	for pages := client.Files.ListAutoPaging(ctx, openai.FileListParams{}); pages.Next(); {
		found = found || pages.Current().ID == made.ID
	}
	check(found, made.RawJSON(), "is not listed")
	content := ok(client.Files.Content(ctx, made.ID))
	same(string(ok(io.ReadAll(content.Body))), "The river is long.\n")
	question := responses.ResponseInputMessageContentListParam{
		responses.ResponseInputContentParamOfInputText("How long?"),
		{OfInputFile: &responses.ResponseInputFileParam{FileID: openai.String(made.ID)}},
	}
	asked := responses.ResponseNewParams{
		Model: model, Input: items(responses.ResponseInputItemParamOfMessage(question, "user")),
	}
	answer := ok(client.Responses.New(ctx, asked))
	shown := ok(client.Responses.InputItems.List(ctx, answer.ID, responses.InputItemListParams{})).RawJSON()
	check(strings.Contains(shown, "File "+name+`:\nThe river is long.`), shown)
	check(ok(client.Files.Delete(ctx, made.ID)).Deleted, made.ID)
	_, err := client.Responses.New(ctx, asked)
	same(refusal(err).StatusCode, http.StatusBadRequest)
	return refusal(err).Param
}

func uploadANamedFile() any {
	return upload(openai.File(strings.NewReader("The river is long.\n"), "river.txt", "text/plain"), "river.txt")
}

// A reader without a name: the SDK makes one, and says application/octet-stream.
func uploadBytesWithoutAName() any {
	return upload(bytes.NewReader([]byte("The river is long.\n")), "anonymous_file")
}

func aConversationInSeveralTurns() any {
	made := ok(client.Conversations.New(ctx, conversations.ConversationNewParams{
		Metadata: map[string]string{"topic": "rain"},
		Items:    []responses.ResponseInputItemUnionParam{message("Be brief.", "developer")},
	}))
	in := responses.ResponseNewParamsConversationUnion{OfString: openai.String(made.ID)}
	first := ok(client.Responses.New(ctx, responses.ResponseNewParams{
		Model: model, Input: text(weather), Tools: tools, Conversation: in,
	}))
	same(first.Conversation.ID, made.ID)
	restartGateway()
	stream := client.Responses.NewStreaming(ctx, responses.ResponseNewParams{
		Model: model, Input: items(output(theCall(first).CallID, "21 degrees")), Tools: tools, Conversation: in,
	})
	second := read(stream, 0, never).final.OutputText()
	check(strings.Contains(second, "21 degrees"), second)
	emptyRedis()
	kinds, ids := []string{}, []string{}
	pages := client.Conversations.Items.ListAutoPaging(ctx, made.ID, conversations.ItemListParams{
		Limit: openai.Int(2), Order: conversations.ItemListParamsOrderAsc,
	})
	for pages.Next() {
		kinds, ids = append(kinds, pages.Current().Type), append(ids, pages.Current().ID)
	}
	must(pages.Err())
	same(kinds, []string{"message", "message", "function_call", "function_call_output", "message"})
	added := ok(client.Conversations.Items.New(ctx, made.ID, conversations.ItemNewParams{
		Items: []responses.ResponseInputItemUnionParam{message("one more", "user")},
	}))
	one := ok(client.Conversations.Items.Get(ctx, made.ID, added.FirstID, conversations.ItemGetParams{}))
	same(one.RawJSON(), added.Data[0].RawJSON())
	ok(client.Conversations.Items.Delete(ctx, made.ID, ids[0]))
	left := ok(client.Conversations.Items.List(ctx, made.ID, conversations.ItemListParams{}))
	same(len(left.Data), len(ids))
	same(left.Data[0].ID, added.FirstID)
	changed := ok(client.Conversations.Update(ctx, made.ID, conversations.ConversationUpdateParams{
		Metadata: map[string]string{"topic": "sun"},
	}))
	same(ok(client.Conversations.Get(ctx, made.ID)).RawJSON(), changed.RawJSON())
	check(ok(client.Conversations.Delete(ctx, made.ID)).Deleted, made.ID)
	_, err := client.Responses.New(ctx, responses.ResponseNewParams{Model: model, Input: text("say more"), Conversation: in})
	same(refusal(err).StatusCode, http.StatusNotFound)
	return refusal(err).Code
}

func aConversationThatIsLocked() any {
	made := ok(client.Conversations.New(ctx, conversations.ConversationNewParams{}))
	in := responses.ResponseNewParamsConversationUnion{OfString: openai.String(made.ID)}
	asked := responses.ResponseNewParams{Model: model, Input: text(longCall), Tools: tools, Conversation: in}
	var refused *openai.Error
	read(client.Responses.NewStreaming(ctx, asked), 0, func(*transcript) bool {
		if refused == nil {
			_, err := client.Responses.New(ctx, responses.ResponseNewParams{
				Model: model, Input: text("say now"), Conversation: in,
			})
			refused = refusal(err)
		}
		return false
	})
	same(refused.Code, "conversation_locked")
	return refused.Message
}

func aSocketWithTools() any {
	connection := ok(client.Responses.Connect(ctx, responses.ResponseConnectionOptions{}))
	defer connection.Close()
	lane := ok(connection.Lane("main"))
	answer := func(input responses.ResponseInputParam, previous string) *responses.Response {
		asked := responses.ResponsesClientEventResponseCreateParam{
			Model: model, Tools: tools, StreamID: openai.String("main"),
			Input: responses.ResponsesClientEventResponseCreateInputUnionParam{OfResponse: &input},
		}
		if previous != "" {
			asked.PreviousResponseID = openai.String(previous)
		}
		must(connection.Create(ctx, asked))
		return ok(lane.FinalResponse(ctx))
	}
	first := answer(responses.ResponseInputParam{message(weather, "user")}, "")
	second := answer(responses.ResponseInputParam{output(theCall(first).CallID, "fog")}, first.ID)
	check(strings.Contains(second.OutputText(), "fog"), second.RawJSON())
	return second.OutputText()
}

func main() {
	runAll([]scenario{
		{"plain text", plainText},
		{"a stream", aStream},
		{"a stream resumed", aStreamResumed},
		{"a stream in the background resumed", aStreamInTheBackgroundResumed},
		{"a call, its output and an answer", aCallItsOutputAndAnAnswer},
		{"items sent back without storage", itemsSentBackWithoutStorage},
		{"chat: streamed tool calls", chatStreamedToolCalls},
		{"upload a named file and ask about it", uploadANamedFile},
		{"upload bytes without a name and ask about them", uploadBytesWithoutAName},
		{"a conversation in several turns", aConversationInSeveralTurns},
		{"a conversation that is locked", aConversationThatIsLocked},
		{"a socket with tools", aSocketWithTools},
		{"a worker killed in a tool call", aWorkerKilledInAToolCall},
	})
}
