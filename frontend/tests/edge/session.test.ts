import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { SignInRefusal } from "../../src/core/signInRefusal";
import { Session, subject, popFragment, type SessionParts } from "../../src/edge/session";

/** A credential with the claims that the page reads. */
function of(sub: unknown): string {
  const bytes = new TextEncoder().encode(JSON.stringify({ sub }));
  const part = btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  return `h.${part}.s`;
}

class Memory {
  readonly records = new Map<string, string>();
  getItem = (key: string): string | null => this.records.get(key) ?? null;
  setItem = (key: string, value: string): void => void this.records.set(key, value);
  removeItem = (key: string): void => void this.records.delete(key);
}

/** The gateway and the browser's cookie: the user who is signed in, and the token. */
class Gateway {
  who: string | null = null;
  token = 0;
  away = false;
  gives: string | null = null;
  refuses: number | null = null;
  readonly calls: string[] = [];

  answer = (url: string, init: RequestInit): Promise<Response> => {
    const method = init.method ?? "GET";
    this.calls.push(`${method} ${url}`);
    if (this.away) return Promise.reject(new TypeError("away"));
    if (url === "/dev/credential") return this.json(this.gives === null ? 404 : 200, { credential: this.gives });
    if (method === "POST") {
      if (this.refuses !== null) return this.json(this.refuses, {});
      this.who = subject((JSON.parse(init.body as string) as { credential: string }).credential);
      this.token += 1;
    } else if (method === "DELETE") {
      const token = (init.headers as Record<string, string>)["X-Tailrace-Session"];
      if (this.who !== null && token !== `t${this.token}`) return this.json(403, {});
      this.who = null;
      return this.json(200, {});
    }
    return this.json(200, { subject: this.who, token: this.who === null ? null : `t${this.token}` });
  };

  private json(status: number, body: unknown): Promise<Response> {
    return Promise.resolve(new Response(JSON.stringify(body), { status, headers: { "retry-after": "30" } }));
  }
}

let storage: Memory;
let gateway: Gateway;
let switches: [string, string | null][];
let who: (string | null)[];
let signInRequests: number;
let why: (SignInRefusal | null)[];
let agrees: boolean;
let signOuts: number;

/** `initialUser`: the user whose name the page already shows. */
function newSession(initialUser: string | null = null): Session {
  const parts: SessionParts = {
    base: "",
    initialUser,
    storage: storage as unknown as Storage,
    requestSignIn: (refusal) => {
      signInRequests += 1;
      why.push(refusal);
    },
    confirmSwitch: (to, from) => {
      switches.push([to, from]);
      return Promise.resolve(agrees);
    },
    onSignOut: () => (signOuts += 1),
    onUserChange: (now) => who.push(now),
  };
  return new Session(parts);
}

beforeEach(() => {
  storage = new Memory();
  gateway = new Gateway();
  switches = [];
  signOuts = 0;
  who = [];
  signInRequests = 0;
  why = [];
  agrees = false;
  vi.stubGlobal("fetch", gateway.answer);
});
afterEach(() => vi.unstubAllGlobals());

describe("a link with a credential", () => {
  it("does not take the place of another one unless the reader agrees", async () => {
    gateway.who = "alice";
    await newSession().start(of("mallory"));
    expect(switches).toEqual([["mallory", "alice"]]);
    expect(gateway.who).toBe("alice");
    expect(who).toEqual(["alice"]);
  });

  it("does when the reader agrees", async () => {
    gateway.who = "alice";
    agrees = true;
    await newSession().start(of("bob"));
    expect(gateway.who).toBe("bob");
    expect(who).toEqual(["alice", "bob"]);
  });

  it("signs nobody in without a question, either", async () => {
    await newSession().start(of("mallory"));
    expect(switches).toEqual([["mallory", null]]);
    expect(gateway.who).toBeNull();
    expect(signInRequests).toBe(1);
  });

  it("asks nothing when it names who the reader is", async () => {
    gateway.who = "alice";
    await newSession().start(of("alice"));
    expect(switches).toEqual([]);
  });
});

describe("a name that is shown before the gateway was asked", () => {
  it("stays while the gateway is away, and when it says the same", async () => {
    gateway.away = true;
    const session = newSession("alice");
    await session.start(null);
    gateway.away = false;
    gateway.who = "alice";
    expect(await session.renew()).toBe(true);
    expect([who, signInRequests]).toEqual([[], 0]);
  });

  it("goes when the gateway says another one, or none", async () => {
    gateway.who = "bob";
    await newSession("alice").start(null);
    gateway.who = null;
    await newSession("alice").start(null);
    expect(who).toEqual(["bob", null]);
  });

  it("goes when another tab signs out, also where this one has not reached the gateway before", async () => {
    gateway.away = true;
    const session = newSession("alice");
    await session.start(null);
    gateway.away = false;
    session.onStorage({ storageArea: storage as unknown as Storage, key: "tailrace.session" });
    await vi.waitFor(() => expect(who).toEqual([null]));
  });
});

describe("without a session", () => {
  it("takes the credential that the gateway of this machine gives", async () => {
    gateway.gives = of("dev");
    await newSession().start(null);
    expect([gateway.who, who, signInRequests]).toEqual(["dev", ["dev"], 0]);
  });

  it("takes the one that a former version of the page kept, and keeps it no longer", async () => {
    storage.setItem("tailrace.credential", of("alice"));
    await newSession().start(null);
    expect(gateway.who).toBe("alice");
    expect([...storage.records.keys()]).toEqual([]);
  });

  it("waits for a gateway that is away before it asks the reader", async () => {
    gateway.away = true;
    await newSession().start(null);
    expect(signInRequests).toBe(0);
  });

  it("tells the reader why what they gave was refused", async () => {
    const session = newSession();
    await session.start(null);
    gateway.refuses = 401;
    expect(await session.submitCredential("x.y.z")).toEqual({ kind: "malformed" });
    expect([signInRequests, who]).toEqual([1, []]);
  });
});

it("keeps no credential and no token where another script of the page could find them", async () => {
  const session = newSession();
  await session.start(null);
  await session.submitCredential(of("alice"));
  expect(session.headers()).toEqual({ "X-Tailrace-Session": "t1" });
  const record = JSON.stringify([...storage.records]);
  expect(record).not.toContain(of("alice"));
  expect(record).not.toContain("t1");
});

describe("signing out", () => {
  it("ends the session and says so", async () => {
    gateway.who = "alice";
    const session = newSession();
    await session.start(null);
    expect(await session.signOut()).toBe(true);
    expect(gateway.who).toBeNull();
    expect(who).toEqual(["alice", null]);
    expect(session.headers()).toEqual({});
  });

  it("lasts on a gateway that gives credentials, also in a new tab, until the reader signs in", async () => {
    gateway.gives = of("dev");
    const session = newSession();
    await session.start(null);
    await session.signOut();
    expect(await session.renew()).toBe(false);
    const again = newSession();
    await again.start(null);
    expect([gateway.who, signInRequests, again.isSignedOut]).toEqual([null, 2, true]);
    expect(await again.offeredCredential()).toBe(of("dev"));
    expect(await again.submitCredential(of("dev"))).toBeNull();
    gateway.who = null; // the session ends by itself
    expect(await again.renew()).toBe(true);
    expect(gateway.who).toBe("dev");
  });

  it("ends with a link whose user the reader agrees to become", async () => {
    gateway.gives = of("dev");
    const session = newSession();
    await session.start(null);
    await session.signOut();
    agrees = true;
    await newSession().start(of("bob"));
    gateway.who = null;
    await newSession().start(null);
    expect(gateway.who).toBe("dev");
  });

  it("ends it although another tab has signed in since", async () => {
    gateway.who = "alice";
    const session = newSession();
    await session.start(null);
    gateway.token += 1;
    expect(await session.signOut()).toBe(true);
    expect(gateway.who).toBeNull();
  });

  it("does not claim it while the gateway is away", async () => {
    gateway.who = "alice";
    const session = newSession();
    await session.start(null);
    gateway.away = true;
    expect(await session.signOut()).toBe(false);
    expect(who).toEqual(["alice"]);
  });

  it("is heard by the other tabs, and so is signing in", async () => {
    gateway.who = "alice";
    const [one, other] = [newSession(), newSession()];
    await one.start(null);
    await other.start(null);
    await one.signOut();
    const [key] = [...storage.records.keys()];
    const area = storage as unknown as Storage;
    other.onStorage({ storageArea: area, key: "tailrace.theme" });
    expect(other.headers()).not.toEqual({});
    other.onStorage({ storageArea: area, key: key ?? "" });
    await vi.waitFor(() => expect(other.headers()).toEqual({}));
  });
});

describe("after a refusal", () => {
  it("goes on with the new token of the same reader", async () => {
    gateway.who = "alice";
    const session = newSession();
    await session.start(null);
    gateway.token += 1;
    expect(await session.renew()).toBe(true);
    expect(session.headers()).toEqual({ "X-Tailrace-Session": "t1" });
  });

  it("does not send under another name what one reader asked", async () => {
    gateway.who = "alice";
    const session = newSession();
    await session.start(null);
    gateway.who = "bob";
    expect(await session.renew()).toBe(false);
    expect(who).toEqual(["alice", "bob"]);
  });

  it("does not send under the name of the one who signed in elsewhere what was asked without a user", async () => {
    const session = newSession();
    await session.start(null);
    gateway.who = "bob";
    expect(await session.renew()).toBe(false);
    expect(who).toEqual(["bob"]);
  });

  it("asks the reader when the session is over", async () => {
    gateway.who = "alice";
    const session = newSession();
    await session.start(null);
    gateway.who = null;
    expect(await session.renew()).toBe(false);
    expect(signInRequests).toBe(1);
  });
});

it.each([
  [of("alice"), "alice"],
  [of("Жанна 🌊"), "Жанна 🌊"],
  [of(""), "an unknown user"],
  [of(7), "an unknown user"],
  ["", "an unknown user"],
  ["a.b.c", "an unknown user"],
  ["h.bnVsbA.s", "an unknown user"],
])("names the user of a credential, and an unknown user for text that is no credential", (credential, name) => {
  expect(subject(credential)).toBe(name);
});

it("takes the credential out of the address and leaves the rest", () => {
  let address = "";
  const location = { hash: "#c=1&credential=%20x.y.z%20", pathname: "/", search: "" } as Location;
  const history = { replaceState: (_state: unknown, _title: string, to: string) => (address = to) } as unknown as History;
  expect(popFragment(location, history)).toBe("x.y.z");
  expect(address).toBe("/#c=1");
});

describe("a sign-in that failed", () => {
  it.each<[number, object]>([
    [401, { kind: "refused" }],
    [403, { kind: "address" }],
    [429, { kind: "tooMany", retryAfterMs: 30_000 }],
    [503, { kind: "unready" }],
  ])("gives the reason that %i has, and asks for nothing by itself", async (status, reason) => {
    gateway.refuses = status;
    expect(await newSession().submitCredential(of("bob"))).toEqual(reason);
    expect([who, signInRequests]).toEqual([[], 0]);
    gateway.refuses = null;
    expect(await newSession().submitCredential(of("bob"))).toBeNull();
    expect(who).toEqual(["bob"]);
  });

  it("gives the reason that there is no server", async () => {
    gateway.away = true;
    expect(await newSession().submitCredential(of("bob"))).toEqual({ kind: "away" });
  });

  it.each([401, 429])("by a link is told to the reader, who has to give a credential (%i)", async (status) => {
    gateway.refuses = status;
    agrees = true;
    await newSession().start(of("bob"));
    expect(why).toEqual([status === 401 ? { kind: "refused" } : { kind: "tooMany", retryAfterMs: 30_000 }]);
  });
});
