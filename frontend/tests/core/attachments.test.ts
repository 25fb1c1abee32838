import { describe, expect, it } from "vitest";
import { content, fromMetadata, isExpired, canUploadUnchanged, isText, kindOf, MAX_ATTACHMENTS, readAttachments, refusalBeforeReading, toMetadata, MAX_UPLOADED_IMAGE_BYTES, fitWithin, type Attachment } from "../../src/core/attachments";

const IMAGE: Attachment = { fileId: "file-1", name: "cat.png", kind: "image", bytes: 10, expiresAt: 100 };
const TEXT: Attachment = { fileId: "file-2", name: "notes.md", kind: "file", bytes: 20, expiresAt: 100 };

describe("attachments", () => {
  it("come before the question, and without them it is a text", () => {
    expect(content("What?", [])).toBe("What?");
    expect(content("What?", [IMAGE, TEXT])).toEqual([
      { type: "input_image", file_id: "file-1" },
      { type: "input_file", file_id: "file-2" },
      { type: "input_text", text: "What?" },
    ]);
  });

  it("expire at their time, if that is known", () => {
    expect([99, 100].map((now) => isExpired(IMAGE, now))).toEqual([false, true]);
    expect(isExpired({ ...IMAGE, expiresAt: 0 }, 1000)).toBe(false);
  });

  it("that were stored are read as far as they can be", () => {
    expect(readAttachments([IMAGE, TEXT])).toEqual([IMAGE, TEXT]);
    expect(readAttachments([null, 5, {}, { fileId: "f" }, { fileId: "f", kind: "film" }, { fileId: "f", kind: "file", bytes: "x" }])).toEqual([{ fileId: "f", name: "", kind: "file", bytes: 0, expiresAt: 0 }]);
    for (const record of [undefined, null, "x", {}]) expect(readAttachments(record)).toEqual([]);
  });
});

describe("attachments as metadata of a response", () => {
  it("come back, within the server's bounds", () => {
    const long = { ...TEXT, fileId: `file-${"x".repeat(40)}`, name: `"${"\\".repeat(300)}\u0007`, bytes: 262_144, expiresAt: 1_900_000_000_000 };
    const many = [IMAGE, ...Array.from({ length: 9 }, () => long)];
    const metadata = toMetadata(many);
    expect(fromMetadata(metadata)).toEqual([IMAGE, ...Array.from({ length: 9 }, () => ({ ...long, name: `"${"\\".repeat(99)}` }))]);
    expect(Object.keys(metadata).length).toBeLessThanOrEqual(13); // three say which turn it is
    for (const value of Object.values(metadata)) expect(Array.from(value).length).toBeLessThanOrEqual(512);
  });

  it("that are none are left out", () => {
    expect(fromMetadata({ "file.0": "{", "file.1": 5, "file.2": "null", "file.3": JSON.stringify(TEXT), file: "x" })).toEqual([TEXT]);
  });
});

describe("a file", () => {
  const ALL = { images: true, files: true };

  it("is an image or a text by its type, and a drawing of SVG is a text", () => {
    expect(["image/png", "image/heic", "image/svg+xml", "text/plain", "", "application/pdf"].map(kindOf)).toEqual(["image", "image", "file", "file", "file", "file"]);
  });

  it.each([
    [null, "image/png", 50_000_000, ALL],
    ["tooLarge", "image/png", 50_000_001, ALL],
    [null, "text/plain", 262_144, ALL],
    ["tooLarge", "text/plain", 262_145, ALL],
    ["empty", "text/plain", 0, ALL],
    ["noImages", "image/png", 5, { images: false, files: true }],
    ["noFiles", "", 5, { images: true, files: false }],
  ] as const)("is refused before it is read: %s of %s", (why, type, bytes, takes) => {
    expect(refusalBeforeReading(type, bytes, takes)).toBe(why);
  });

  it("is a text if it is UTF-8, and no PDF", () => {
    const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
    expect([bytes("Zürich 😀"), bytes(""), bytes("\ufeffa"), bytes("%PDF-1.7"), bytes("a\0b"), new Uint8Array([0xff, 0xfe]), new Uint8Array([0x61, 0xc3])].map(isText)).toEqual([true, true, true, false, false, false, false]);
  });
});

describe("an image", () => {
  it("keeps its shape within the bound, and is never made larger", () => {
    expect(fitWithin({ width: 3584, height: 1792 })).toEqual({ width: 1792, height: 896 });
    expect(fitWithin({ width: 100, height: 50 })).toEqual({ width: 100, height: 50 });
    expect(fitWithin({ width: 20_000, height: 2 })).toEqual({ width: 1792, height: 1 });
  });

  it("is uploaded as it is only if the server takes it so, and it says no more than its pixels", () => {
    const size = { width: 1792, height: 10 };
    expect(canUploadUnchanged("image/png", MAX_UPLOADED_IMAGE_BYTES, size)).toBe(true);
    expect(canUploadUnchanged("image/png", MAX_UPLOADED_IMAGE_BYTES + 1, size)).toBe(false);
    expect(canUploadUnchanged("image/png", 10, { ...size, width: 1793 })).toBe(false);
    for (const type of ["image/jpeg", "image/heic", "image/bmp"]) expect(canUploadUnchanged(type, 10, size)).toBe(false);
  });

  it("is small enough for as many as a question may have", () => {
    const { width, height } = fitWithin({ width: 9000, height: 9000 });
    expect(MAX_ATTACHMENTS * MAX_UPLOADED_IMAGE_BYTES).toBeLessThanOrEqual(6_291_456);
    expect(MAX_ATTACHMENTS * width * height).toBeLessThanOrEqual(33_554_432);
  });
});
