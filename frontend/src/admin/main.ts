/* Composition root of the admin page. */

import "../style.css";
import "./admin.css";
import { ApiError } from "../edge/api";
import { Session, popFragment } from "../edge/session";
import { storageOf } from "../edge/store";
import { Account } from "../view/account";
import { LinkSignIn } from "../view/linkSignIn";
import { SignIn } from "../view/signin";
import { AdminApi } from "./api";
import { AdminApp, type Problem } from "./adminApp";
import { Polling } from "./polling";

const PIPELINES_MS = 3_000;
const ANALYTICS_MS = 10_000;

function problemOf(error: unknown): Problem {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) return { words: "Sign in to see this.", old: false, signIn: true };
  if (error.status === 403) return { words: error.message, old: false, signIn: true };
  return { words: error.message, old: error.status !== 404, signIn: false };
}

async function begin(): Promise<void> {
  const root = document.getElementById("app");
  if (root === null) throw new Error("the page has no #app");
  const fragment = popFragment(location, history);
  const local = storageOf("localStorage");
  const later = (run: () => void, ms: number): (() => void) => {
    const timer = setTimeout(run, ms);
    return () => clearTimeout(timer);
  };
  const pollAll = (): void => {
    pipelines.now();
    analytics.now();
  };
  const CREDENTIAL_HINT = "This page needs a credential with the scope admin.";
  const NOT_SIGNED_IN = "You are not signed in.";
  const signIn = new SignIn({ submitCredential: (credential) => session.submitCredential(credential), offer: () => Promise.resolve(null), onSignIn: pollAll }, "tailrace token --scopes read,admin");
  const linkSignIn = new LinkSignIn();
  const account = new Account(() => {
    void session.signOut().then((isSignedOut) => {
      if (!isSignedOut) return app.problem("pipelines", { words: "The service cannot be reached, so you are still signed in.", old: true, signIn: false });
      signIn.open("You are signed out.");
    });
  });
  let isStarted = false;
  const session = new Session({
    base: "",
    storage: local,
    initialUser: null,
    requestSignIn: (refusal) => {
      app.clear(NOT_SIGNED_IN, true);
      signIn.open(CREDENTIAL_HINT, refusal);
    },
    confirmSwitch: (who, instead) => linkSignIn.confirm(who, instead),
    onSignOut: () => undefined,
    onUserChange: (who) => {
      account.show(who);
      if (who === null) app.clear(NOT_SIGNED_IN, true);
      else app.clear("Loading…");
      if (isStarted && who !== null) pollAll();
    },
  });
  const api = new AdminApi(session);
  const app = new AdminApp(root, local, account.element, () => analytics.now(), () => signIn.open(CREDENTIAL_HINT));
  document.body.append(signIn.element, linkSignIn.element);
  const polling = (half: "pipelines" | "analytics", everyMs: number, ask: () => Promise<void>): Polling =>
    new Polling({
      poll: () => ask().catch((error: unknown) => app.problem(half, problemOf(error))),
      everyMs,
      // Without a sign-in every request would be refused.
      isVisible: () => document.visibilityState === "visible" && !signIn.element.open,
      later,
    });
  const pipelines = polling("pipelines", PIPELINES_MS, async () => app.showPipelines(await api.pipelines()));
  const analytics = polling("analytics", ANALYTICS_MS, async () => {
    const minutes = app.minutes;
    const figures = await api.analytics(minutes);
    if (minutes === app.minutes) app.showAnalytics(figures);
  });

  window.addEventListener("storage", (event) => session.onStorage(event));
  window.addEventListener("online", pollAll);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && !signIn.element.open) pollAll();
  });
  app.clear("Loading…");
  await session.start(fragment);
  isStarted = true;
  if (!signIn.element.open) pollAll();
}

void begin();
