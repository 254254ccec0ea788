// Draws the page again whenever something happened. Everything is there without this.
"use strict";
const live = document.getElementById("live");
let first = true, busy = false;
async function again() {
  if (busy || document.activeElement instanceof HTMLInputElement) return;
  busy = true;
  try {
    const here = new URL(location.href);
    here.searchParams.set("live", "1");
    const text = await (await fetch(here)).text();
    const page = new DOMParser().parseFromString(text, "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
  } catch { /* the next event tries again */ }
  busy = false;
}
const news = new EventSource("/events");
news.onmessage = (event) => {
  live.textContent = event.data === "gone" ? "the daemon is gone" : "live";
  if (!first) again();
  first = false;
};
