/** Where learning stands: the sentence, success over episodes, and an operator's orders. */

import { showError } from "./alert.js";
import { byId, el, show, svg } from "./dom.js";
import { getCurve, getGroups, getLearning, postOrder } from "./server.js";

const EVERY_MS = 3000;
const HEIGHT = 240;
const EDGE = { top: 12, right: 14, bottom: 30, left: 42 };
const ARMS = ["unguided", "guided"];
const PERCENT = [0, 0.25, 0.5, 0.75, 1];
const TURNS = ["guiding", "rolled_back"];

export class Learning {
  constructor() {
    this.place = byId("learning-chart");
    this.choice = byId("learning-group");
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** The question whose answer is wanted; an earlier one's comes too late. */
    this.asked = 0;
    this.curve = null;
    new ResizeObserver(() => this.draw()).observe(this.place);
    this.choice.addEventListener("change", () => this.askIn(0));
    for (const button of this.orders) button.addEventListener("click", () => this.order(button.value));
    document.addEventListener("visibilitychange", () => this.askIn(0));
    addEventListener("keychange", () => this.askIn(0));
  }

  get orders() {
    return [...byId("learning-orders").querySelectorAll("button")];
  }

  /** Begins where the server learns. */
  start() {
    byId("tab-learning").hidden = false;
    this.askIn(0);
  }

  /** @param {number} ms */
  askIn(ms) {
    if (byId("tab-learning").hidden) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), ms);
  }

  async ask() {
    const mine = ++this.asked;
    if (byId("learning").checkVisibility() && !document.hidden) {
      try {
        const groups = await getGroups().catch(() => []);
        const group = this.choice.value;
        const [state, curve] = await Promise.all([getLearning(group), getCurve(group)]);
        if (this.asked === mine) this.show(groups, state, curve);
      } catch (error) {
        if (this.asked === mine) showError(byId("learning-error"), error);
      }
    }
    if (this.asked === mine) this.askIn(EVERY_MS);
  }

  /** @param {string} order */
  async order(order) {
    show(byId("order-error"));
    try {
      await postOrder(order, this.choice.value);
      this.askIn(0);
    } catch (error) {
      showError(byId("order-error"), error);
    }
  }

  show(groups, state, curve) {
    show(byId("learning-error"));
    this.showGroups(groups, state);
    byId("learning-sentence").textContent = `${state.sentence}.`;
    byId("learning-facts").textContent = `${state.phase}${state.mode === "auto" ? "" : `, ${state.mode}`}`;
    const isEmpty = ARMS.every((arm) => !curve[arm].length);
    byId("learning-legend").hidden = isEmpty;
    this.place.hidden = isEmpty;
    this.curve = curve;
    this.draw();
    const changes = curve.changes.slice(-10).reverse().map(changeOf);
    show(byId("learning-changes"), ...changes);
  }

  /** Only an admin key is told of groups, and only it may order. */
  showGroups(groups, state) {
    byId("learning-orders").hidden = !groups.length;
    byId("learning-groups").hidden = groups.length < 2;
    if (document.activeElement === this.choice) return; // its list may be open
    const own = el("option", { value: "", textContent: "this key's" });
    const others = groups.map(({ group, phase, episodes }) =>
      el("option", { value: group, textContent: `${group}: ${phase}, ${episodes} episodes` }),
    );
    const chosen = this.choice.value;
    this.choice.replaceChildren(own, ...others);
    this.choice.value = groups.some(({ group }) => group === chosen) ? chosen : "";
    for (const button of this.orders) {
      button.setAttribute("aria-pressed", String(button.dataset.mode === state.mode));
    }
  }

  draw() {
    if (this.curve && this.place.clientWidth) {
      this.place.replaceChildren(drawingOf(this.curve, this.place.clientWidth));
    }
  }
}

function changeOf({ episode, at, reason }) {
  const day = new Date(at * 1000).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
  return el("li", {}, el("span", { className: "facts", textContent: `episode ${episode}, ${day}: ` }), reason);
}

/** @param {number} width */
function drawingOf(curve, width) {
  const label = inWords(curve);
  const drawing = svg("svg", { class: "chart", role: "img", width, height: HEIGHT, "aria-label": label });
  const last = Math.max(1, ...ARMS.flatMap((arm) => curve[arm].map((point) => point.last)));
  const x = (episode) => EDGE.left + (episode / last) * (width - EDGE.left - EDGE.right);
  const y = (share) => EDGE.top + (1 - share) * (HEIGHT - EDGE.top - EDGE.bottom);
  for (const share of PERCENT) {
    drawing.append(
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(share), y2: y(share) }),
      svg("text", { class: "q-label", x: EDGE.left - 6, y: y(share) + 4 }, `${100 * share}%`),
      svg("text", { x: x(share * last), y: HEIGHT - 10 }, String(Math.round(share * last))),
    );
  }
  for (const { episode, event } of curve.changes.filter(({ event: kind }) => TURNS.includes(kind))) {
    drawing.append(svg("line", { class: `turn ${event}`, x1: x(episode), x2: x(episode), y1: y(1), y2: y(0) }));
  }
  for (const arm of ARMS) drawing.append(...lineOf(curve[arm], arm, x, y));
  return drawing;
}

function lineOf(points, arm, x, y) {
  const across = (point) => x((point.first - 1 + point.last) / 2);
  const along = (end) => points.map((point) => [across(point), y(point[end])]);
  return [
    svg("polygon", { class: `band ${arm}`, points: [...along("high"), ...along("low").reverse()].join(" ") }),
    svg("polyline", { class: `arm ${arm}`, points: along("mean").join(" ") }),
    ...along("mean").map(([cx, cy]) => svg("circle", { class: `dot ${arm}`, cx, cy, r: 2.5 })),
  ];
}

function inWords(curve) {
  const said = (arm) =>
    curve[arm].map(({ first, last, mean }) => `${first} to ${last} ${Math.round(100 * mean)}%`).join(", ");
  const parts = ARMS.filter((arm) => curve[arm].length).map((arm) => `${arm}: episodes ${said(arm)}`);
  return parts.length ? `Mean outcome, ${parts.join("; ")}` : "no episode has ended yet";
}
