/* Why a sign-in failed. The server gives the same reason for every refused credential, so that
   nobody learns how to forge one. Causes that the reader can fix are read from the credential
   itself. */

import { texts } from "./words";

export type SignInRefusal =
  /** The text does not have the form of a credential. */
  | { readonly kind: "malformed" }
  /** `at`: ms since the epoch. */
  | { readonly kind: "expired"; readonly at: number }
  | { readonly kind: "early"; readonly at: number }
  /** Only the server knows the cause: forged, for another server, from an unknown issuer, revoked. */
  | { readonly kind: "refused" }
  /** The server does not accept sign-ins from this page's address. */
  | { readonly kind: "address" }
  /** Too many credentials were refused. `retryAfterMs`: null where the server does not say. */
  | { readonly kind: "tooMany"; readonly retryAfterMs: number | null }
  /** The server cannot check credentials now. */
  | { readonly kind: "unready" }
  | { readonly kind: "failed"; readonly status: number }
  | { readonly kind: "away" };

/** `status` 0: the server was not reached. */
export function signInRefusal(status: number, retryAfterMs: number | null, credential: string, now: number): SignInRefusal {
  if (status === 0) return { kind: "away" };
  if (status === 403) return { kind: "address" };
  if (status === 429) return { kind: "tooMany", retryAfterMs };
  if (status === 503) return { kind: "unready" };
  if (status === 413) return { kind: "malformed" };
  if (status !== 401) return { kind: "failed", status };
  const payload = claims(credential);
  if (payload === null) return { kind: "malformed" };
  const [expires, notBefore] = [ms(payload["exp"]), ms(payload["nbf"])];
  if (expires !== null && expires <= now) return { kind: "expired", at: expires };
  if (notBefore !== null && notBefore > now) return { kind: "early", at: notBefore };
  return { kind: "refused" };
}

/** The message: what happened, and what the reader can do. */
export function signInWords(refusal: SignInRefusal): string {
  switch (refusal.kind) {
    case "malformed":
      return texts().signInMalformed;
    case "expired":
      return texts().signInExpired(refusal.at);
    case "early":
      return texts().signInEarly(refusal.at);
    case "refused":
      return texts().signInRefused;
    case "address":
      return texts().signInAddress;
    case "tooMany":
      return texts().signInTooMany(refusal.retryAfterMs === null ? texts().inAMoment : texts().inSeconds(Math.max(1, Math.ceil(refusal.retryAfterMs / 1000))));
    case "unready":
      return texts().signInUnready;
    case "failed":
      return texts().signInFailed(refusal.status);
    case "away":
      return texts().signInAway;
  }
}

/** The claims of a credential, unverified; null where the credential has another form. */
export function claims(credential: string): Readonly<Record<string, unknown>> | null {
  const parts = credential.split(".");
  if (parts.length !== 3 || parts[2] === "") return null;
  try {
    const part = (parts[1] ?? "").replace(/-/g, "+").replace(/_/g, "/");
    const bytes = Uint8Array.from(atob(part), (character) => character.charCodeAt(0));
    const payload: unknown = JSON.parse(new TextDecoder().decode(bytes));
    return typeof payload === "object" && payload !== null && !Array.isArray(payload) ? (payload as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

function ms(seconds: unknown): number | null {
  return typeof seconds === "number" && Number.isFinite(seconds) ? seconds * 1000 : null;
}
