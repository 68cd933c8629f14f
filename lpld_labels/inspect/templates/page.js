"use strict";
// Pages through the views: one at a time, in the order and of the kind that was picked. Without this
// script all of them show, one below the other.
(() => {
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll(".chart-figure details")) folded.open = true;
  });
  const views = [...document.querySelectorAll(".view")];
  if (!views.length) return;
  const byId = (id) => document.getElementById(id);
  const [order, place, controls] = [byId("view-order"), byId("view-place"), byId("view-controls")];
  const filters = [...controls.querySelectorAll("select[data-filter]")];
  const confidence = (view) => Number(view.dataset.confidence);
  const orders = {
    sampled: () => 0,
    most: (a, b) => confidence(b) - confidence(a),
    least: (a, b) => confidence(a) - confidence(b),
  };
  let shown = [];
  let at = 0;

  function show() {
    for (const view of views) view.hidden = view !== shown[at];
    place.textContent = shown.length ? `${at + 1} of ${shown.length}` : "none of this kind";
  }
  function move(steps) {
    if (!shown.length) return;
    at = (at + steps + shown.length) % shown.length;
    show();
  }
  function pick() {
    const wanted = filters.filter((select) => select.value !== "");
    shown = views.filter((view) => wanted.every((s) => view.dataset[s.dataset.filter] === s.value));
    shown.sort(orders[order.value]);
    at = 0;
    show();
  }
  byId("view-next").addEventListener("click", () => move(1));
  byId("view-previous").addEventListener("click", () => move(-1));
  for (const select of [order, ...filters]) select.addEventListener("change", pick);
  addEventListener("keydown", (event) => {
    // Arrows keep their own meaning in lists and in tables that scroll.
    const busy = event.target instanceof Element && event.target.closest("select, input, .scroll");
    if (busy || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    move(steps);
  });
  controls.hidden = false;
  pick();
})();
