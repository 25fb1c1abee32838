import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Credential, subject, takeFragment, type CredentialParts } from "../../src/edge/credential";

const KEY = "tailrace.credential";

/** A credential as far as the page reads it. */
function of(sub: unknown): string {
  const bytes = new TextEncoder().encode(JSON.stringify({ sub }));
  const part = btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  return `h.${part}.s`;
}

class Memory {
  readonly kept = new Map<string, string>();
  getItem = (key: string): string | null => this.kept.get(key) ?? null;
  setItem = (key: string, value: string): void => void this.kept.set(key, value);
  removeItem = (key: string): void => void this.kept.delete(key);
}

let storage: Memory;
let asked: [string, string | null][];
let who: (string | null)[];
let wanted: number;
let agrees: boolean;
let gateway: { status: number; body: unknown } | null;

function made(): Credential {
  const parts: CredentialParts = {
    base: "",
    storage: storage as unknown as Storage,
    wanted: () => (wanted += 1),
    switches: (to, from) => {
      asked.push([to, from]);
      return Promise.resolve(agrees);
    },
    changed: (now) => who.push(now),
  };
  return new Credential(parts);
}

beforeEach(() => {
  storage = new Memory();
  asked = [];
  who = [];
  wanted = 0;
  agrees = false;
  gateway = { status: 404, body: {} };
  vi.stubGlobal("fetch", () => {
    if (gateway === null) return Promise.reject(new TypeError("away"));
    return Promise.resolve(new Response(JSON.stringify(gateway.body), { status: gateway.status }));
  });
});
afterEach(() => vi.unstubAllGlobals());

describe("a link with a credential", () => {
  it("does not take the place of another one unless the reader agrees", async () => {
    storage.setItem(KEY, of("alice"));
    const credential = made();
    await credential.start(of("mallory"));
    expect(asked).toEqual([["mallory", "alice"]]);
    expect(credential.current()).toBe(of("alice"));
    expect(storage.getItem(KEY)).toBe(of("alice"));
    expect(who).toEqual(["alice"]);
  });

  it("does when the reader agrees", async () => {
    storage.setItem(KEY, of("alice"));
    agrees = true;
    const credential = made();
    await credential.start(of("bob"));
    expect(credential.current()).toBe(of("bob"));
    expect(who).toEqual(["alice", "bob"]);
  });

  it("signs nobody in without a question, either", async () => {
    const credential = made();
    await credential.start(of("mallory"));
    expect(asked).toEqual([["mallory", null]]);
    expect(credential.current()).toBeNull();
    expect(wanted).toBe(1);
  });

  it("asks nothing when it brings what is there", async () => {
    storage.setItem(KEY, of("alice"));
    await made().start(of("alice"));
    expect(asked).toEqual([]);
  });

  it("is not looked at where the gateway of this machine gives one", async () => {
    gateway = { status: 200, body: { credential: of("dev") } };
    const credential = made();
    await credential.start(of("mallory"));
    expect(asked).toEqual([]);
    expect(credential.current()).toBe(of("dev"));
  });
});

describe("signing out", () => {
  it("forgets the credential here and says so", async () => {
    storage.setItem(KEY, of("alice"));
    const credential = made();
    await credential.start(null);
    credential.signOut();
    expect(credential.current()).toBeNull();
    expect(storage.getItem(KEY)).toBeNull();
    expect(who).toEqual(["alice", null]);
  });

  it("is heard by the other tabs, and so is signing in", async () => {
    storage.setItem(KEY, of("alice"));
    const other = made();
    await other.start(null);
    const area = storage as unknown as Storage;
    other.heard({ storageArea: area, key: "tailrace.theme", newValue: "dark" });
    other.heard({ storageArea: area, key: KEY, newValue: null });
    expect(other.current()).toBeNull();
    other.heard({ storageArea: area, key: KEY, newValue: of("bob") });
    expect(other.current()).toBe(of("bob"));
    expect(who).toEqual(["alice", null, "bob"]);
  });
});

it("waits for a gateway that is away before it asks the reader", async () => {
  gateway = null;
  await made().start(null);
  expect(wanted).toBe(0);
});

it.each([
  [of("alice"), "alice"],
  [of("Жанна 🌊"), "Жанна 🌊"],
  [of(""), "somebody unknown"],
  [of(7), "somebody unknown"],
  ["", "somebody unknown"],
  ["a.b.c", "somebody unknown"],
  ["h.bnVsbA.s", "somebody unknown"],
])("names whom a credential names, and nobody for one that is none", (credential, name) => {
  expect(subject(credential)).toBe(name);
});

it("takes the credential out of the address and leaves the rest", () => {
  let address = "";
  const location = { hash: "#c=1&credential=%20x.y.z%20", pathname: "/", search: "" } as Location;
  const history = { replaceState: (_state: unknown, _title: string, to: string) => (address = to) } as unknown as History;
  expect(takeFragment(location, history)).toBe("x.y.z");
  expect(address).toBe("/#c=1");
});
