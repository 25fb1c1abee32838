import { describe, expect, it } from "vitest";
import { claims, signInRefusal } from "../../src/core/signInRefusal";

const NOW = 1_800_000_000_000;

function credential(content: unknown): string {
  const part = btoa(JSON.stringify(content)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  return `e30.${part}.c2ln`;
}

describe("why a sign-in failed", () => {
  it.each<[string, string, object]>([
    ["is no credential", "hello", { kind: "malformed" }],
    ["has no claims", "a.b.c", { kind: "malformed" }],
    ["has expired", credential({ exp: NOW / 1000 - 60 }), { kind: "expired", at: NOW - 60_000 }],
    ["is not yet valid", credential({ exp: NOW / 1000 + 99, nbf: NOW / 1000 + 60 }), { kind: "early", at: NOW + 60_000 }],
    ["looks good", credential({ exp: NOW / 1000 + 60, nbf: NOW / 1000 - 60 }), { kind: "refused" }],
    ["has times of another kind", credential({ exp: "soon", nbf: null }), { kind: "refused" }],
  ])("is read from a credential that was refused and %s", (_, text, expected) => {
    expect(signInRefusal(401, null, text, NOW)).toEqual(expected);
  });

  it.each<[number, object]>([
    [0, { kind: "away" }],
    [403, { kind: "address" }],
    [413, { kind: "malformed" }],
    [429, { kind: "tooMany", retryAfterMs: 4000 }],
    [500, { kind: "failed", status: 500 }],
    [503, { kind: "unready" }],
  ])("is the server's answer where that is %i, whatever the credential says", (status, expected) => {
    expect(signInRefusal(status, 4000, credential({ exp: 1 }), NOW)).toEqual(expected);
  });
});

it("reads claims in any writing", () => {
  const part = btoa(String.fromCharCode(...new TextEncoder().encode('{"sub":"Zoë ÿÿ"}'))).replace(/\+/g, "-").replace(/\//g, "_");
  expect(claims(`h.${part}.s`)).toEqual({ sub: "Zoë ÿÿ" });
  expect(claims(credential([1]))).toBeNull();
});
