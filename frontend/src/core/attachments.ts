/* Images and texts that go with a question. They are uploaded before it is asked, so that only their names are kept in
   this browser. */

/** A file is a text. */
export type Kind = "image" | "file";

export interface Attachment {
  readonly fileId: string;
  readonly name: string;
  readonly kind: Kind;
  readonly bytes: number;
  /** When the server no longer has the upload, in ms; 0: not known. Answers keep what they were shown. */
  readonly expiresAt: number;
}

export type Part =
  | { readonly type: "input_image"; readonly file_id: string }
  | { readonly type: "input_file"; readonly file_id: string }
  | { readonly type: "input_text"; readonly text: string };

/** A question as the content of a message: what it is about comes first. */
export function content(question: string, attachments: readonly Attachment[]): string | readonly Part[] {
  if (attachments.length === 0) return question;
  const files = attachments.map(({ kind, fileId }): Part => ({ type: kind === "image" ? "input_image" : "input_file", file_id: fileId }));
  return [...files, { type: "input_text", text: question }];
}

export function isExpired({ expiresAt }: Attachment, now: number): boolean {
  return expiresAt !== 0 && expiresAt <= now;
}

/** What was stored may be of another version of this page or damaged. */
export function readAttachments(record: unknown): readonly Attachment[] {
  if (!Array.isArray(record)) return [];
  return record.flatMap((each: Partial<Attachment> | null) => {
    const { fileId, name, kind, bytes, expiresAt } = each ?? {};
    if (typeof fileId !== "string" || (kind !== "image" && kind !== "file")) return [];
    return [{ fileId, name: typeof name === "string" ? name : "", kind, bytes: finite(bytes), expiresAt: finite(expiresAt) }];
  });
}

const KEY = "file.";
const NAME_CHARACTERS = 100;

/** As metadata of the response: what other devices cannot see in its input, which has texts as words and images without
    names. Its values have at most 512 characters. */
export function toMetadata(attachments: readonly Attachment[]): Record<string, string> {
  const entries = attachments.slice(0, MAX_ATTACHMENTS).map((each) => ({ ...each, name: Array.from(each.name.replace(/\p{C}/gu, "")).slice(0, NAME_CHARACTERS).join("") }));
  return Object.fromEntries(entries.map((each, place) => [KEY + place, JSON.stringify(each)]));
}

export function fromMetadata(metadata: Readonly<Record<string, unknown>>): readonly Attachment[] {
  const records: unknown[] = [];
  for (let place = 0; place < MAX_ATTACHMENTS; place += 1) {
    const entry = metadata[KEY + place];
    try {
      if (typeof entry === "string") records.push(JSON.parse(entry));
    } catch {
      // This page did not write it.
    }
  }
  return readAttachments(records);
}

// ---- what can be attached

export const MAX_ATTACHMENTS = 10;
/** The server's bound of a text. */
export const MAX_TEXT_BYTES = 262_144;
/** What the browser is asked to decode; it is scaled down before it is uploaded. */
export const MAX_IMAGE_BYTES = 50_000_000;
/** So that as many images as may be attached stay within the server's bounds of a request. */
export const MAX_UPLOADED_IMAGE_BYTES = 600_000;
const MAX_SIDE = 1792;
/** What the server takes as it is. A JPEG is written anew: it may be turned by its metadata, which also say where it was made. */
const UNCHANGED_TYPES = ["image/png", "image/webp", "image/gif"];

/** Why a file cannot be attached. */
export type Refusal = "empty" | "tooLarge" | "notDecoded" | "notText" | "noImages" | "noFiles";

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** The largest size of the same shape with sides up to `side`. */
export function fitWithin({ width, height }: Size, side = MAX_SIDE): Size {
  const factor = Math.min(1, side / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * factor)), height: Math.max(1, Math.round(height * factor)) };
}

/** Whether an image is uploaded as it is. */
export function canUploadUnchanged(type: string, bytes: number, size: Size): boolean {
  return UNCHANGED_TYPES.includes(type) && bytes <= MAX_UPLOADED_IMAGE_BYTES && Math.max(size.width, size.height) <= MAX_SIDE;
}

/** By what the system says that it is. A drawing of SVG is a text. */
export function kindOf(type: string): Kind {
  return type.startsWith("image/") && type !== "image/svg+xml" ? "image" : "file";
}

/** What can be said before the file is read; `takes`: what the model takes. */
export function refusalBeforeReading(type: string, bytes: number, takes: { images: boolean; files: boolean }): Refusal | null {
  const image = kindOf(type) === "image";
  if (image && !takes.images) return "noImages";
  if (!image && !takes.files) return "noFiles";
  if (bytes === 0) return "empty";
  return bytes > (image ? MAX_IMAGE_BYTES : MAX_TEXT_BYTES) ? "tooLarge" : null;
}

/** Whether the server takes it as a text. */
export function isText(bytes: Uint8Array): boolean {
  if (bytes.includes(0) || String.fromCharCode(...bytes.subarray(0, 5)) === "%PDF-") return false;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

function finite(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}
