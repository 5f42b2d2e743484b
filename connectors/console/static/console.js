// Two things need a script: the slider of a row's moments, and new changes that appear by themselves.
"use strict";

const slider = document.getElementById("change");
if (slider) {
  document.getElementById("go").hidden = true;
  slider.addEventListener("input", () => { document.getElementById("number").value = slider.value; });
  slider.addEventListener("change", () => slider.form.requestSubmit());
}

const list = document.getElementById("changes");
if (list) {
  const state = document.getElementById("live");
  const pause = document.getElementById("pause");
  const shownMax = 200;
  let waiting = [];
  let isPaused = false;
  const tell = (text) => { if (state.textContent !== text) state.textContent = text; };
  const add = (html) => {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const line = holder.content.firstElementChild;
    line.classList.add("fresh");
    list.prepend(line);
    while (list.children.length > shownMax) list.lastElementChild.remove();
    document.getElementById("none")?.remove();
  };
  const source = new EventSource(list.dataset.events);
  source.addEventListener("open", () => tell("Watching: new changes appear here."));
  source.addEventListener("error", () => {
    tell(source.readyState === EventSource.CLOSED ? "The console refused the live view; load the page again." : "The connection is lost; connecting again.");
  });
  source.addEventListener("change", (event) => {
    if (isPaused) waiting = [...waiting, event.data].slice(-shownMax);
    else add(event.data);
  });
  source.addEventListener("skipped", (event) => tell(`Watching. ${event.data} changes came too fast and were left out.`));
  source.addEventListener("problem", (event) => { source.close(); tell(event.data); });
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Continue" : "Pause";
    tell(isPaused ? "Paused." : "Watching: new changes appear here.");
    for (const html of waiting.splice(0)) add(html);
  });
}
