import { describe, expect, it } from "vitest";
import { mergeMessages, chatName, readShared, type SharedMessage } from "../../src/core/sharedChat";

const BODY = { object: "conversation.shared", title: "Rain", created_at: 10, expires_at: 20, data: [], has_more: false, next: null };

function message(role: "user" | "assistant", text: string, more: Partial<SharedMessage> = {}): SharedMessage {
  return { role, text, images: 0, files: 0, continues: false, ...more };
}

describe("what a link shows", () => {
  it("is read as the gateway says it", () => {
    const data = [{ role: "user", text: "Why?", images: 2, files: 1 }, { role: "assistant", text: "So.", continues: true }];
    expect(readShared({ ...BODY, data, next: 50 })).toEqual({
      title: "Rain",
      sharedAt: 10_000,
      endsAt: 20_000,
      messages: [message("user", "Why?", { images: 2, files: 1 }), message("assistant", "So.", { continues: true })],
      next: 50,
    });
    expect(readShared({ ...BODY, title: null })?.title).toBe("");
  });

  it("leaves out rows that it does not know", () => {
    const data = [null, 5, {}, { role: "system", text: "x" }, { role: "user" }, { role: "user", text: "a", images: -1, files: "2" }];
    expect(readShared({ ...BODY, data })?.messages).toEqual([message("user", "a")]);
  });

  it.each([null, "x", [], {}, { ...BODY, data: {} }, { ...BODY, created_at: "10" }, { ...BODY, expires_at: undefined }])("is nothing where it is %j", (body) => {
    expect(readShared(body)).toBeNull();
  });
});

describe("messages", () => {
  it("that continue one another are read as one", () => {
    const messages = mergeMessages([message("user", "q"), message("assistant", "One tw\ufffd"), message("assistant", "o three", { continues: true }), message("assistant", "apart")]);
    expect(messages.map(({ text }) => text)).toEqual(["q", "One two three", "apart"]);
  });

  it("that continue nothing stand alone", () => {
    const messages = mergeMessages([message("assistant", "a", { continues: true }), message("user", "q"), message("assistant", "b", { continues: true })]);
    expect(messages.map(({ text }) => text)).toEqual(["a", "q", "b"]);
  });
});

describe("its name", () => {
  it("is its title, else its first question, cut", () => {
    expect(chatName(" Rain ", [message("user", "q")])).toBe("Rain");
    expect(chatName("", [message("assistant", "a"), message("user", " "), message("user", "why\n does it?")])).toBe("why does it?");
    expect(chatName("", [])).toBe("");
    expect(chatName("x".repeat(500), [])).toHaveLength(120);
  });
});
