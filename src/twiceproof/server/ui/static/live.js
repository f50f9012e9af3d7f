// Live changes: one event stream for each browser. The tab that holds the lock listens, and tells the others.
// Changes text and classes of what is there; rows never move, and a touched form is left alone.
const body = document.body;
const own = document.querySelector("[data-own-run]");
const news = document.querySelector("[data-news]");
const rows = [...document.querySelectorAll("[data-run]")];
const tab = Math.random().toString(36).slice(2);
const since = Date.now() / 1000;
const mine = [...new Set([...rows.map((one) => one.dataset.run), ...(own ? [own.dataset.ownRun] : [])])].slice(0, 100);
const title = document.title;
const channel = "BroadcastChannel" in window ? new BroadcastChannel("twiceproof.live " + body.dataset.root) : null;

function say(text, link) {
  news.hidden = !text;
  news.querySelector("[data-news-text]").textContent = text;
  news.querySelector("a").hidden = !link;
  news.querySelector("a").textContent = link ?? "";
}

function show(told) {
  if (told.ended) { say("Your session has ended.", "Log in"); return; }
  if (told.away) { say("The server is away. Trying again.", ""); return; }
  let waiting = 0;
  for (const one of document.querySelectorAll("[data-count]")) {
    const count = told.counts[one.dataset.count] ?? 0;
    one.hidden = !count;
    one.textContent = count > told.most ? `${told.most}+` : count;
    waiting += count;
  }
  document.title = waiting ? `(${waiting > told.most ? told.most + "+" : waiting}) ${title}` : title;
  for (const row of rows) {
    const now = told.runs[row.dataset.run], state = row.querySelector(".state");
    if (!now || !state || state.dataset.state === now.state) continue;
    state.dataset.state = now.state;
    state.className = `state ${now.tone}`;
    state.querySelector(".sign").textContent = now.sign;
    state.querySelector(".word").textContent = now.word;
  }
  const run = own && told.runs[own.dataset.ownRun];
  if (run && run.version && run.version !== own.dataset.version) {
    const busy = document.documentElement.dataset.touched || getSelection()?.toString() || own.dataset.changed;
    if (busy) say(`This run has changed: it is ${run.word} now.`, "Reload");
    else location.reload();
  } else if (body.querySelector("[data-live-rows]") && told.newer && told.since <= since + 5) {
    say(`${told.newer} newer`, "Show");
  } else say("", "");
}

// -- the leader ----------------------------------------------------------------------------------
const tabs = new Map();
let source = null, asked = "";

function listen() {
  const wanted = [...new Set([...tabs.values()].flat())].sort().slice(0, 200).join(",");
  const query = `?runs=${wanted}&since=${since}`;
  if (!tabs.size) { source?.close(); source = null; asked = ""; return; }
  if (source && query === asked) return;
  source?.close();
  asked = query;
  source = new EventSource(body.dataset.live + query);
  source.onmessage = (event) => tell({ ...JSON.parse(event.data), since });
  source.onerror = async () => {
    const isClosed = source?.readyState === EventSource.CLOSED;
    if (isClosed) { asked = ""; source = null; }
    if (isClosed && await isOver()) { tell({ ended: true }); return; }
    tell({ away: true });
    if (isClosed) setTimeout(listen, 5000);
  };
}
const isOver = () => fetch(location.href, { method: "HEAD" }).then((answer) => answer.status === 401, () => false);
function tell(told) { channel?.postMessage({ told }); if (!document.hidden) show(told); }
function heard({ from, runs, gone, who, told }) {
  if (told) { if (!document.hidden) show(told); return; }
  if (who) { announce(); return; }
  if (!leading) return;
  if (gone) tabs.delete(from); else tabs.set(from, runs);
  listen();
}
let leading = false;
function announce() {
  const message = document.hidden ? { from: tab, gone: true } : { from: tab, runs: mine };
  channel?.postMessage(message);
  heard(message);
}
if (news && document.querySelector(".places")) {
  if (channel) channel.onmessage = (event) => heard(event.data);
  const lead = () => { leading = true; channel?.postMessage({ who: true }); announce(); return new Promise(() => {}); };
  if (navigator.locks) navigator.locks.request("twiceproof.live " + body.dataset.root, lead); else lead();
  document.addEventListener("visibilitychange", announce);
  addEventListener("pagehide", () => { channel?.postMessage({ from: tab, gone: true }); source?.close(); source = null; });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  announce();
}
