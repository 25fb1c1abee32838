/* Why a sign-in failed. The server gives one reason for every credential that it refuses, so that it teaches no one how to
   forge one; what the reader can mend, the credential itself tells. */

import { texts } from "./words";

export type SignInRefusal =
  /** It has not the form of a credential. */
  | { readonly kind: "malformed" }
  /** `at`: ms since the epoch. */
  | { readonly kind: "expired"; readonly at: number }
  | { readonly kind: "early"; readonly at: number }
  /** For the server to know: forged, for another server, from an unknown issuer, revoked. */
  | { readonly kind: "refused" }
  /** This page's address is none from which the server takes a sign-in. */
  | { readonly kind: "address" }
  /** Too many were refused. `retryAfterMs`: null where the server does not say. */
  | { readonly kind: "tooMany"; readonly retryAfterMs: number | null }
  /** The server is there and cannot check credentials now. */
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

/** What happened and what helps. */
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

/** What a credential says of itself, which only the server can check; null where it has another form. */
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
