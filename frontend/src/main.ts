/* Composition root: builds the parts, gives each what it needs, and starts them. */

import "./style.css";
import "./chats.css";
import "./asking.css";
import { Controller } from "./controller";
import type { Attachment, Kind } from "./core/attachments";
import { uploadWords } from "./core/messages";
import { languageOf, preference, texts, use } from "./core/words";
import { Api, ApiError, type Config } from "./edge/api";
import { keepConfig, keptConfig } from "./edge/keptConfig";
import { forgetUser, keepUser, keptUser } from "./edge/keptUser";
import { bringServiceWorker } from "./edge/serviceWorker";
import { Session, takeFragment } from "./edge/session";
import { Shares } from "./edge/shares";
import { Conversations } from "./edge/conversations";
import { Library } from "./library";
import { WatchSocket, TicketRefused } from "./edge/watchSocket";
import { blobOf, prepare, shownPicture } from "./edge/pictures";
import { BrowserStore, storageOf } from "./edge/store";
import { Account } from "./view/account";
import { App } from "./view/app";
import { markdown } from "./view/lazyMarkdown";
import { Pictures } from "./view/pictures";
import { LanguageChoice } from "./view/language";
import { ExportSection } from "./view/exportSection";
import { ShareSection } from "./view/shareSection";
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

const PROBE_MS = 3000;
const LOOK_AGAIN_MS = 10_000;
/** So long the page waits for what draws the chat it opens with. */
const SOON_MS = 150;

async function begin(): Promise<void> {
  const fragment = takeFragment(location, history);
  const [local, tab] = [storageOf("localStorage"), storageOf("sessionStorage")];
  await use(languageOf(preference(local), navigator.languages));
  // public/early.js found a chat that is about to be shown. What draws it is on its way; with it the first frame has the answers.
  if (document.querySelector('link[data-chat][rel="modulepreload"]') !== null) await markdown.soon(SOON_MS);
  document.documentElement.lang = texts().code;
  const signIn = new SignIn(
    (credential) => session.give(credential),
    () => watchSocket.hurry(),
  );
  let begun = false;
  let owner = keptUser(local);
  const linkSignIn = new LinkSignIn();
  const account = new Account(() => {
    void session.signOut().then((done) => {
      if (done) signIn.ask(texts().signedOutKept);
      else app.toast(texts().stillSignedIn);
    });
  });
  const session = new Session({
    base: "",
    storage: local,
    shown: owner,
    wanted: (refusal) => signIn.ask(texts().credentialWanted, refusal),
    switches: (who, instead) => linkSignIn.ask(who, instead),
    left: () => forgetUser(local),
    changed: (who) => {
      account.show(who);
      if (who !== null) belong(who);
      else if (keptUser(local) === null) belong(null);
      if (!begun) return;
      // What is open was opened for another user.
      watchSocket.stop();
      if (who !== null) watchSocket.hurry();
      else app.setConnection({ kind: "refused", words: texts().signedOut });
    },
  });
  const api = new Api("", session);

  let look = (): void => undefined; // ends a look that is due
  const offer = (found: Config): void => {
    app.offer(found);
    share.offered = found.shares;
    keepConfig(local, found);
    look();
    // Whether a model takes images is known when a worker of it is there.
    if (Object.values(found.takes).some(({ images }) => images === null)) look = later(lookAgain, LOOK_AGAIN_MS);
  };
  const lookAgain = (): void => {
    const next = (): void => void (look = later(lookAgain, LOOK_AGAIN_MS));
    if (document.visibilityState === "hidden") next();
    else api.config().then(offer, next);
  };
  let config: Promise<Config> | null = null;
  const lastConfig = keptConfig(local);
  const configured = (): Promise<Config> => {
    config ??= api.config().then(
      (found) => {
        offer(found);
        return found;
      },
      (error: unknown) => {
        config = null;
        if (lastConfig === null) throw error;
        return lastConfig;
      },
    );
    return config;
  };

  let opened = false;
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
    onOpen: () => {
      controller.socketOpened();
      library.socketOpened();
      app.socketOpened();
      markdown.bring(); // before the first answer asks for it
      // What is offered may have changed with the gateway.
      if (opened) lookAgain();
      opened = true;
    },
    onMessage: (message) => controller.socketMessage(message),
  });
  const store = new BrowserStore(local);
  const name = tabName(tab);
  const warn = (words: string): void => console.warn(words);
  const controller: Controller = new Controller({
    store,
    api,
    watchSocket: { send: (message) => watchSocket.send(message), replace: () => watchSocket.replace(), draining: (afterMs) => watchSocket.draining(afterMs), expiring: () => void watchSocket.expiring() },
    now: () => Date.now(),
    newId,
    pause: (ms) => new Promise((done) => setTimeout(done, ms)),
    later,
    online: () => navigator.onLine,
    place: (conversation) => library.place(conversation),
    ended: (id, turn) => library.ended(id, turn),
    feed: (events) => library.feed(events),
    tab: name,
    warn,
  });
  const library = new Library({
    api: new Conversations(api),
    server: configured,
    copies: controller,
    store,
    send: (message) => watchSocket.send(message),
    now: () => Date.now(),
    later,
    tab: name,
    warn,
  });

  const root = document.getElementById("app");
  if (root === null) throw new Error("the page has no #app");
  const share = new ShareSection(new Shares(api, location.origin));
  const language = new LanguageChoice({ storage: local, tab, reload: () => location.reload(), refused: () => app.toast(texts().languageNotKept) });
  const upload = (blob: Blob, name: string, kind: Kind, key: string): Promise<Attachment> =>
    api.upload(blob, name, kind, key).catch((error: unknown) => {
      throw error instanceof ApiError ? new Error(uploadWords(error.status, error.fault, error.retryAfterMs)) : error;
    });
  const pictures = new Pictures({ content: (id) => api.content(id), shownImages: (id) => api.shownImages(id), decode: shownPicture, blobOf });
  const app = new App(root, controller, library, store, { pictures, prepare, upload, newId }, local, () => watchSocket.hurry(), account.element, language, [share, new ExportSection((id) => controller.get(id))], () => api.engine());
  document.body.append(signIn.element, linkSignIn.element);

  const belong = (who: string | null): void => {
    if (who === owner) return;
    owner = who;
    if (who !== null) keepUser(local, who);
    controller.load(who);
    library.reset();
    app.start(who !== null);
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
  account.show(owner);
  controller.load(owner);
  if (lastConfig !== null) app.offer(lastConfig);
  app.start(owner !== null);
  if (language.wasChosen()) app.toLanguage();
  await session.start(fragment);
  begun = true;
  controller.start();
  watchSocket.hurry();
  if (!import.meta.env.DEV) {
    await bringServiceWorker({ workers: navigator.serviceWorker, caches: window.caches, fetch: (path, options) => fetch(path, options) });
  }
}

void begin();
