/* Follows a run: asks for the page again and takes over what changed; the viewer keeps what it shows. */
async function takeOver(text) {
  const policy = /http-equiv="Content-Security-Policy" content="([^"]*)"/.exec(text)[1];
  if (policy !== document.querySelector("meta[http-equiv]").content) return location.reload();  // the run has begun
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const main = document.querySelector("main"), key = (part) => part.getAttribute("aria-labelledby") ?? part.tagName;
  const old = new Map([...main.children].map((part) => [key(part), part]));
  let above = null;
  for (const part of [...fresh.querySelector("main").children]) {
    const before = old.get(key(part));
    old.delete(key(part));
    let now = before ?? part;
    if (!before) above ? above.after(part) : main.prepend(part);
    else if (part.matches(".viewer")) before.querySelector(".note").replaceWith(part.querySelector(".note"));
    else if (!before.isEqualNode(part)) {
      const folds = [...before.querySelectorAll("details")];
      part.querySelectorAll("details").forEach((fold, i) => { fold.open = folds[i]?.open ?? false; });
      before.replaceWith(part);
      now = part;
    }
    above = now;
  }
  for (const part of old.values()) part.remove();
  for (const data of fresh.querySelectorAll("script[type='text/plain']")) {
    const mine = document.getElementById(data.id);
    if (mine) mine.textContent = data.textContent; else document.body.append(data);
  }
  opened.clear();
  document.dispatchEvent(new Event("page-grown"));
  viewer?.update(await unpack("episodes-index"));
}

(async () => {
  let tag = "";
  for (;;) {
    await new Promise((done) => setTimeout(done, 1000));
    if (document.hidden) continue;
    try {
      const answer = await fetch(location.pathname, {cache: "no-store", headers: {"If-None-Match": tag}});
      document.body.classList.remove("ended");
      if (answer.status !== 200) continue;
      tag = answer.headers.get("ETag");
      await takeOver(await answer.text());
    } catch {
      document.body.classList.add("ended");  // the page stays as it is
    }
  }
})();
