import { beforeEach, describe, expect, it } from "vitest";
import type { Attachment } from "../../src/core/attachments";
import { Pictures } from "../../src/view/pictures";

const image = (fileId: string): Attachment => ({ fileId, name: "a.png", kind: "image", bytes: 1, expiresAt: 0 });
const picture = (name: string): ImageBitmap => ({ name }) as unknown as ImageBitmap;

let uploads: Map<string, string>;
let images: Map<string, string[]>;
let reads: string[];
let pictures: Pictures;

beforeEach(() => {
  [uploads, images, reads] = [new Map([["f1", "upload"]]), new Map([["r", ["first", "second"]]]), []];
  pictures = new Pictures({
    content: async (fileId) => {
      reads.push(fileId);
      const blob = uploads.get(fileId);
      return blob === undefined ? null : new Blob([blob]);
    },
    inputImages: async (responseId) => images.get(responseId) ?? null,
    decode: async (blob) => picture(await blob.text()),
    blobOf: (url) => new Blob([url]),
  });
});

describe("an image of a question", () => {
  it("is read once", async () => {
    const both = await Promise.all([pictures.get(image("f1"), null), pictures.get(image("f1"), null)]);
    expect(both).toEqual([picture("upload"), picture("upload")]);
    expect(reads).toEqual(["f1"]);
  });

  it("whose upload has expired is what the response was shown", async () => {
    expect(await pictures.get(image("gone"), { responseId: "r", place: 1 })).toEqual(picture("second"));
    expect(await pictures.get(image("gone2"), { responseId: "r", place: 2 })).toBeNull();
  });

  it("that could not be read is looked for again", async () => {
    expect(await pictures.get(image("f2"), null)).toBeNull();
    uploads.set("f2", "later");
    expect(await pictures.get(image("f2"), null)).toEqual(picture("later"));
  });

  it("was decoded before its upload, and is forgotten with its user", async () => {
    pictures.remember("f1", picture("local"));
    expect(await pictures.get(image("f1"), null)).toEqual(picture("local"));
    pictures.forget();
    expect(await pictures.get(image("f1"), null)).toEqual(picture("upload"));
  });

  it("makes room for newer ones", async () => {
    for (let count = 0; count < 61; count += 1) pictures.remember(`n${count}`, picture("local"));
    expect(await pictures.get(image("n0"), null)).toBeNull();
    expect(await pictures.get(image("n60"), null)).toEqual(picture("local"));
  });
});
