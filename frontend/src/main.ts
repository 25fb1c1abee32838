/* Composition root: creates the parts, connects them and starts them. */

import "./style.css";
import "./chats.css";
import "./questionInput.css";
import { Controller } from "./controller";
import type { Attachment, Kind } from "./core/attachments";
import { needsSignIn, uploadWords } from "./core/messages";
import { languageOf, preference, texts, useLanguage } from "./core/words";
import { Api, ApiError, type Config } from "./edge/api";
import { storeConfig, loadConfig } from "./edge/storedConfig";
import { forgetUser, storeUser, loadUser } from "./edge/storedUser";
import { updateServiceWorker } from "./edge/serviceWorker";
import { Session, popFragment, subject } from "./edge/session";
import { Shares } from "./edge/shares";
import { Conversations } from "./edge/conversations";
import { Library } from "./library";
import { WatchSocket, TicketRefused } from "./edge/watchSocket";
import { blobOf, prepare, decodePreview } from "./edge/pictures";
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
import { UploadError } from "./view/tray";

function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The id of this tab; it survives reloads. */
function tabName(storage: Storage | null): string {
  const name = storage?.getItem("tailrace.tab") ?? newId();
  storage?.setItem("tailrace.tab", name);
  return name;
}

function later(run: () => void, ms: number): () => void {
  const timer = setTimeout(run, ms);
  return () => clearTimeout(timer);
}

/** The push services, starting at a random one so that readers spread over them, and the gateway as
    the last. */
function watchAddresses(config: Config, chance: number): string[] {
  const first = Math.floor(chance * config.pushUrls.length);
  const inTurn = [...config.pushUrls.slice(first), ...config.pushUrls.slice(0, first), location.origin];
  const bases = inTurn.map((base) => new URL(base, location.href));
  const addresses = bases.map((base) => `${base.origin.replace(/^http/, "ws")}${base.pathname.replace(/\/+$/, "")}/v1/watch`);
  return [...new Set(addresses)];
}

const PROBE_MS = 3000;
const POLL_AGAIN_MS = 10_000;
/** The time that the page waits for Markdown where it opens with a chat. */
const MARKDOWN_WAIT_MS = 150;

async function begin(): Promise<void> {
  const fragment = popFragment(location, history);
  const [local, tab] = [storageOf("localStorage"), storageOf("sessionStorage")];
  await useLanguage(languageOf(preference(local), navigator.languages));
  // public/early.js found a chat to show and started to load Markdown. Waiting for it puts the
  // answers into the first frame.
  if (document.querySelector('link[data-chat][rel="modulepreload"]') !== null) await markdown.wait(MARKDOWN_WAIT_MS);
  document.documentElement.lang = texts().code;
  const signIn = new SignIn({
    submitCredential: (credential) => session.submitCredential(credential),
    offer: async () => {
      const credential = await session.offeredCredential();
      return credential === null ? null : { credential, who: subject(credential) };
    },
    onSignIn: () => watchSocket.connectNow(),
  });
  let isStarted = false;
  let owner = loadUser(local);
  const linkSignIn = new LinkSignIn();
  const account = new Account(() => {
    void session.signOut().then((done) => {
      if (done) signIn.open(texts().signedOutKept);
      else app.toast(texts().stillSignedIn);
    });
  });
  const session = new Session({
    base: "",
    storage: local,
    initialUser: owner,
    requestSignIn: (refusal) => signIn.open(texts().credentialNeeded, refusal),
    confirmSwitch: (who, instead) => linkSignIn.confirm(who, instead),
    onSignOut: () => forgetUser(local),
    onUserChange: (who) => {
      account.show(who);
      if (who !== null) signIn.element.close(); // also after a sign-in in another tab
      if (who !== null) switchUser(who);
      else if (loadUser(local) === null) switchUser(null);
      if (!isStarted) return;
      // The open socket belongs to another user.
      watchSocket.stop();
      connect();
    },
  });
  const connect = (): void => {
    if (!session.isSignedOut) return watchSocket.connectNow();
    app.setConnection({ kind: "signedOut", words: texts().signedOut });
    getConfig().catch(() => undefined); // the models, for a question that waits for the sign-in
  };
  /** The reader wants a connection. */
  const connectOrSignIn = (): void => {
    if (session.isSignedOut) signIn.open(texts().credentialNeeded);
    else watchSocket.connectNow();
  };
  const api = new Api("", session);

  let cancelPoll = (): void => undefined; // cancels a planned poll
  const offer = (newConfig: Config): void => {
    app.offer(newConfig);
    share.isOffered = newConfig.shares;
    storeConfig(local, newConfig);
    cancelPoll();
    // Whether a model accepts images is known only while a worker of it runs.
    if (Object.values(newConfig.takes).some(({ images }) => images === null)) cancelPoll = later(pollConfig, POLL_AGAIN_MS);
  };
  const pollConfig = (): void => {
    const next = (): void => void (cancelPoll = later(pollConfig, POLL_AGAIN_MS));
    if (document.visibilityState === "hidden") next();
    else api.config().then(offer, next);
  };
  let config: Promise<Config> | null = null;
  const lastConfig = loadConfig(local);
  const getConfig = (): Promise<Config> => {
    config ??= api.config().then(
      (newConfig) => {
        offer(newConfig);
        return newConfig;
      },
      (error: unknown) => {
        config = null;
        if (lastConfig === null) throw error;
        return lastConfig;
      },
    );
    return config;
  };

  // Where the reader must sign in, a button says how.
  const onRefuse = async (words: string): Promise<void> => {
    app.setConnection({ kind: "refused", words });
    if (!session.isSignedOut) await session.check();
    if (session.isSignedOut) app.setConnection({ kind: "signedOut", words });
  };
  let hasOpened = false;
  const addressChance = Math.random();
  const watchSocket = new WatchSocket({
    urls: async () => watchAddresses(await getConfig(), addressChance),
    ticket: () =>
      api.ticket().catch((error: unknown) => {
        throw error instanceof ApiError && (error.status === 401 || error.status === 403) ? new TicketRefused(session.isSignedOut ? texts().signedOut : texts().credentialRefused) : error;
      }),
    renew: () => session.renew(),
    refresh: () => session.refresh(),
    connect: (url, protocols) => new WebSocket(url, protocols),
    later,
    now: () => Date.now(),
    chance: () => Math.random(),
    onState: (state) => {
      if (state.kind !== "open") controller.onSocketClose();
      if (state.kind === "refused") void onRefuse(state.words);
      else app.setConnection(navigator.onLine || state.kind === "open" ? state : { kind: "offline" });
    },
    onOpen: () => {
      controller.onSocketOpen();
      library.onSocketOpen();
      app.onSocketOpen();
      markdown.load(); // before the first answer needs it
      // A new gateway may offer something else.
      if (hasOpened) pollConfig();
      hasOpened = true;
    },
    onMessage: (message) => controller.onSocketMessage(message),
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
    ensureRemote: (conversation) => library.ensureRemote(conversation),
    onAnswerEnd: (id, turn) => library.onAnswerEnd(id, turn),
    feed: (events) => library.feed(events),
    tab: name,
    warn,
  });
  const library = new Library({
    api: new Conversations(api),
    server: getConfig,
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
  const language = new LanguageChoice({ storage: local, tab, reload: () => location.reload(), onRefuse: () => app.toast(texts().languageNotKept) });
  const upload = (blob: Blob, name: string, kind: Kind, key: string): Promise<Attachment> =>
    api.upload(blob, name, kind, key).catch((error: unknown) => {
      if (!(error instanceof ApiError)) throw error;
      throw new UploadError(uploadWords(error.status, error.fault, error.retryAfterMs), needsSignIn(error.status, error.fault));
    });
  const pictures = new Pictures({ content: (id) => api.content(id), inputImages: (id) => api.inputImages(id), decode: decodePreview, blobOf });
  const app = new App(root, controller, library, store, { pictures, prepare, upload, newId }, local, connectOrSignIn, account.element, language, [share, new ExportSection((id) => controller.get(id))], () => api.engine());
  document.body.append(signIn.element, linkSignIn.element);

  const switchUser = (who: string | null): void => {
    if (who === owner) return;
    const isOthers = who !== null && store.recipient !== null && store.recipient !== who;
    const isHidden = isOthers && isStarted && (owner !== null || controller.all().length > 0 || app.hasInput);
    owner = who;
    if (who !== null) storeUser(local, who);
    controller.load(who);
    library.reset();
    app.start(who !== null, store.recipient, isHidden);
  };

  // The browser's report about the network may be wrong: a server on this machine can be reached
  // without a network.
  const probe = async (): Promise<void> => {
    if (session.isSignedOut) await session.check();
    else if (watchSocket.isOpen && !(await api.isReachable(PROBE_MS))) watchSocket.drop();
    else watchSocket.connectNow();
  };
  window.addEventListener("online", () => void probe());
  window.addEventListener("offline", () => void probe());
  window.addEventListener("storage", (event) => session.onStorage(event));
  window.addEventListener("beforeunload", (event) => {
    if (app.isUploading) event.preventDefault();
  });
  window.addEventListener("pagehide", () => controller.flush());
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") controller.flush();
    else void probe();
  });

  // First the data of this browser, then the network.
  account.show(owner);
  controller.load(owner);
  if (lastConfig !== null) app.offer(lastConfig);
  app.start(owner !== null, store.recipient);
  if (language.popChoice()) app.toLanguage();
  await session.start(fragment);
  isStarted = true;
  controller.start();
  connect();
  if (!import.meta.env.DEV) {
    await updateServiceWorker({ workers: navigator.serviceWorker, caches: window.caches, fetch: (path, options) => fetch(path, options) });
  }
}

void begin();
