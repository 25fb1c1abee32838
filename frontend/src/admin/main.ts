/* Composition root of the admin page. */

import "../style.css";
import "./admin.css";
import { ApiError } from "../edge/api";
import { Session, takeFragment } from "../edge/session";
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
  const fragment = takeFragment(location, history);
  const local = storageOf("localStorage");
  const later = (run: () => void, ms: number): (() => void) => {
    const timer = setTimeout(run, ms);
    return () => clearTimeout(timer);
  };
  const everything = (): void => {
    pipelines.now();
    analytics.now();
  };
  const WANTED = "This page needs a credential with the scope admin.";
  const NOBODY = "You are not signed in.";
  const signIn = new SignIn((credential) => session.give(credential), everything, "tailrace token --scopes read,admin");
  const linkSignIn = new LinkSignIn();
  const account = new Account(() => {
    void session.signOut().then((done) => {
      if (!done) return app.problem("pipelines", { words: "The service cannot be reached, so you are still signed in.", old: true, signIn: false });
      signIn.ask("You are signed out.");
    });
  });
  let begun = false;
  const session = new Session({
    base: "",
    storage: local,
    shown: null,
    wanted: (refusal) => {
      app.clear(NOBODY, true);
      signIn.ask(WANTED, refusal);
    },
    switches: (who, instead) => linkSignIn.ask(who, instead),
    left: () => undefined,
    changed: (who) => {
      account.show(who);
      if (who === null) app.clear(NOBODY, true);
      else app.clear("Loading…");
      if (begun && who !== null) everything();
    },
  });
  const api = new AdminApi(session);
  const app = new AdminApp(root, local, account.element, () => analytics.now(), () => signIn.ask(WANTED));
  document.body.append(signIn.element, linkSignIn.element);
  const polling = (half: "pipelines" | "analytics", everyMs: number, ask: () => Promise<void>): Polling =>
    new Polling({
      ask: () => ask().catch((error: unknown) => app.problem(half, problemOf(error))),
      everyMs,
      // Without a sign-in there is nothing to ask for.
      seen: () => document.visibilityState === "visible" && !signIn.element.open,
      later,
    });
  const pipelines = polling("pipelines", PIPELINES_MS, async () => app.showPipelines(await api.pipelines()));
  const analytics = polling("analytics", ANALYTICS_MS, async () => {
    const minutes = app.minutes;
    const found = await api.analytics(minutes);
    if (minutes === app.minutes) app.showAnalytics(found);
  });

  window.addEventListener("storage", (event) => session.heard(event));
  window.addEventListener("online", everything);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && !signIn.element.open) everything();
  });
  app.clear("Loading…");
  await session.start(fragment);
  begun = true;
  if (!signIn.element.open) everything();
}

void begin();
