/* Composition root: builds the parts, gives each what it needs, and starts them. */

import "./style.css";
import { Controller } from "./controller";
import { Api, ApiError, type Config } from "./edge/api";
import { Session, takeFragment } from "./edge/session";
import { WatchSocket, TicketRefused } from "./edge/watchSocket";
import { BrowserStore, storageOf } from "./edge/store";
import { Account } from "./view/account";
import { App } from "./view/app";
import { LinkSignIn } from "./view/linkSignIn";
import { SignIn } from "./view/signin";

function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Kept for the life of the tab, its reloads included. */
function tabName(storage: Storage | null): string {
  const name = storage?.getItem("tailrace.tab") ?? newId();
  storage?.setItem("tailrace.tab", name);
  return name;
}

function later(run: () => void, ms: number): () => void {
  const timer = setTimeout(run, ms);
  return () => clearTimeout(timer);
}

/** Every push service in turn, beginning anywhere so that readers spread over them, and the gateway as the last that can deliver. */
function watchAddresses(config: Config, chance: number): string[] {
  const first = Math.floor(chance * config.pushUrls.length);
  const inTurn = [...config.pushUrls.slice(first), ...config.pushUrls.slice(0, first), location.origin];
  const bases = inTurn.map((base) => new URL(base, location.href));
  const addresses = bases.map((base) => `${base.origin.replace(/^http/, "ws")}${base.pathname.replace(/\/+$/, "")}/v1/watch`);
  return [...new Set(addresses)];
}

/** The user whose conversations this browser shows; gone when that user signs out. */
const USER = "tailrace.user";
const PROBE_MS = 3000;

async function begin(): Promise<void> {
  const fragment = takeFragment(location, history);
  const local = storageOf("localStorage");
  const signIn = new SignIn((credential) => {
    void session.give(credential).then(() => watchSocket.hurry());
  });
  let begun = false;
  const linkSignIn = new LinkSignIn();
  const account = new Account(() => {
    void session.signOut().then((done) => {
      if (done) signIn.ask("You are signed out. This browser keeps your chats, and shows them when you sign in again.");
      else app.toast("The server cannot be reached, so you are still signed in.");
    });
  });
  const session = new Session({
    base: "",
    storage: local,
    wanted: () => signIn.ask("This server needs a credential that it accepts."),
    switches: (who, instead) => linkSignIn.ask(who, instead),
    left: () => local?.removeItem(USER),
    changed: (who) => {
      account.show(who);
      if (who !== null) belong(who);
      else if ((local?.getItem(USER) ?? null) === null) belong(null);
      if (!begun) return;
      // What is open was opened for another user.
      watchSocket.stop();
      if (who !== null) watchSocket.hurry();
      else app.setConnection({ kind: "refused", words: "You are signed out." });
    },
  });
  const api = new Api("", session);

  let config: Promise<Config> | null = null;
  const configured = (): Promise<Config> => {
    config ??= api.config().then(
      (found) => {
        app.setModels(found.models, found.defaultModel);
        return found;
      },
      (error: unknown) => {
        config = null;
        throw error;
      },
    );
    return config;
  };

  const place = Math.random();
  const watchSocket = new WatchSocket({
    urls: async () => watchAddresses(await configured(), place),
    ticket: () =>
      api.ticket().catch((error: unknown) => {
        throw error instanceof ApiError && (error.status === 401 || error.status === 403) ? new TicketRefused(error.message) : error;
      }),
    renew: () => session.renew(),
    refresh: () => session.refresh(),
    connect: (url, protocols) => new WebSocket(url, protocols),
    later,
    now: () => Date.now(),
    chance: () => Math.random(),
    onState: (state) => {
      if (state.kind !== "open") controller.socketClosed();
      app.setConnection(navigator.onLine || state.kind === "open" || state.kind === "refused" ? state : { kind: "offline" });
    },
    onOpen: () => controller.socketOpened(),
    onMessage: (message) => controller.socketMessage(message),
  });
  const store = new BrowserStore(local);
  const controller = new Controller({
    store,
    api,
    watchSocket: { send: (message) => watchSocket.send(message), replace: () => watchSocket.replace(), draining: (afterMs) => watchSocket.draining(afterMs), expiring: () => void watchSocket.expiring() },
    now: () => Date.now(),
    newId,
    pause: (ms) => new Promise((done) => setTimeout(done, ms)),
    later,
    online: () => navigator.onLine,
    tab: tabName(storageOf("sessionStorage")),
    warn: (words) => console.warn(words),
  });

  const root = document.getElementById("app");
  if (root === null) throw new Error("the page has no #app");
  const app = new App(root, controller, store, local, () => watchSocket.hurry(), account.element);
  document.body.append(signIn.element, linkSignIn.element);

  let owner = local?.getItem(USER) ?? null;
  const belong = (who: string | null): void => {
    if (who === owner) return;
    owner = who;
    try {
      if (who !== null) local?.setItem(USER, who);
    } catch {
      // A full storage: after a reload the server is asked who this is.
    }
    controller.load(who);
    app.start();
  };

  // What the browser says of the network is not always so: a server of this very machine can be reached without one.
  const probe = async (): Promise<void> => {
    if (watchSocket.isOpen && !(await api.isReachable(PROBE_MS))) watchSocket.drop();
    else watchSocket.hurry();
  };
  window.addEventListener("online", () => void probe());
  window.addEventListener("offline", () => void probe());
  window.addEventListener("storage", (event) => session.heard(event));
  window.addEventListener("pagehide", () => controller.flush());
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") controller.flush();
    else void probe();
  });

  // First what this browser knows, then the network.
  controller.load(owner);
  app.start();
  await session.start(fragment);
  begun = true;
  controller.start();
  watchSocket.hurry();
}

void begin();
