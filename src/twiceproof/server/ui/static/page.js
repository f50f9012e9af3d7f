// Times, copying, keys and forms. Changes text and classes of what the server made, and makes no HTML.
const root = document.documentElement;
root.classList.add("scripted");

// On a narrow page the places are one line that scrolls: the present one is in view.
const here = document.querySelector(".places [aria-current]");
if (here) here.closest("ul").scrollLeft = here.offsetLeft - here.closest("ul").offsetLeft - 40;

// -- times: UTC, local or ago, everywhere at once, and remembered --------------------------------
const zones = document.querySelector("[data-zone]");
const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const stored = (name, value) => {
  try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; }
};

function ago(at) {
  const seconds = (Date.now() - at) / 1000;
  const [unit, size] = units.find(([, least]) => Math.abs(seconds) >= least) ?? units[3];
  const count = Math.floor(Math.abs(seconds) / size);
  return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
}

function showTimes() {
  const zone = stored("twiceproof.zone") ?? "utc";
  for (const one of document.querySelectorAll("time[datetime]")) {
    one.dataset.utc ??= one.textContent;
    const at = Date.parse(one.dateTime);
    one.title = one.dataset.utc;
    one.textContent = zone === "ago" ? ago(at) : zone === "local" ? local.format(at) : one.dataset.utc;
  }
  for (const one of document.querySelectorAll("[data-age]")) {
    one.textContent = ago(Math.min(Date.parse(one.dataset.age), Date.now() - 1000)).replace(" ago", "");
  }
  if (zones) zones.value = zone;
}
zones?.addEventListener("change", () => { stored("twiceproof.zone", zones.value); showTimes(); });
addEventListener("storage", showTimes);
setInterval(() => { if (!document.hidden) showTimes(); }, 10000);
showTimes();

// -- copying: byte for byte what is shown --------------------------------------------------------
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.closest(".command, .value").querySelector("[data-copied]").textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select it, and copy"; }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

// -- open sections: in the address, so that a copied one shows the same, and Back closes the last ----------------
const sections = [...document.querySelectorAll("[data-section]")];
const opened = () => new URLSearchParams(location.search).get("open")?.split(",") ?? [];
for (const one of sections) one.addEventListener("toggle", () => {
  const names = sections.filter((each) => each.open).map((each) => each.dataset.section);
  if (names.join() === opened().join()) return;
  const address = new URL(location.href);
  if (names.length) address.searchParams.set("open", names.join()); else address.searchParams.delete("open");
  history.pushState(null, "", address);
});
addEventListener("popstate", () => { for (const one of sections) one.open = opened().includes(one.dataset.section); });

// -- forms: sent once; a touched one is left alone by what is live -------------------------------
document.addEventListener("input", (event) => { if (event.target.closest("[data-form]")) root.dataset.touched = "yes"; });
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "yes";
});
addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });

// -- keys ----------------------------------------------------------------------------------------
const places = { a: "/", r: "/runs", v: "/review", p: "/approvals", w: "/webhooks", f: "/flows" };
const list = document.querySelector("[data-keys-list]");
const off = document.querySelector("[data-keys-off]");
if (off) {
  off.checked = stored("twiceproof.keys") === "off";
  off.addEventListener("change", () => stored("twiceproof.keys", off.checked ? "off" : "on"));
}
document.querySelector("[data-keys]")?.addEventListener("click", () => list.showModal());
let going = 0;

function row(step) {
  const rows = [...document.querySelectorAll("tbody tr")].filter((one) => one.querySelector("a.open"));
  const now = rows.findIndex((one) => one.dataset.row);
  const next = rows[Math.max(0, Math.min(rows.length - 1, now + step))];
  for (const one of rows) delete one.dataset.row;
  if (!next) return;
  next.dataset.row = "here";
  next.querySelector("a.open").focus();
}

const keys = {
  "/": () => document.getElementById("find")?.focus(),
  j: () => row(1),
  k: () => row(-1),
  x: () => document.querySelector("tr[data-row=here] input[type=checkbox]")?.click(),
  "?": () => list.showModal(),
  g: () => { going = Date.now(); },
};
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || stored("twiceproof.keys") === "off") return;
  const place = Date.now() - going < 1500 && places[event.key];
  if (place) { going = 0; location.assign(document.body.dataset.root + place); return; }
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
