/** The card of an episode's branches: going back, its link, and forgetting what is not wanted. */

import { showError } from "./alert.js";
import { branchesOf } from "./branches.js";
import { byId, show } from "./dom.js";
import { joined, movedTo, NoEpisodeError, pathAlone, pathTo } from "./episode.js";
import { episodeOf, hashOf, IN_LINK } from "./link.js";

/** @typedef {import("./episode.js").Episode} Episode */

export class Tree {
  /** @param {import("./act.js").Act} act */
  constructor(act) {
    this.act = act;
    byId("undo").addEventListener("click", () => this.undo());
    byId("act-link").addEventListener("click", () => this.copyLink());
    byId("branches-alone").addEventListener("click", () => {
      act.change(pathAlone(act.episode));
      byId("act-button").focus();
    });
  }

  /** @param {Episode} episode */
  show(episode) {
    byId("undo").disabled = pathTo(episode).length < 2;
    byId("tree").hidden = episode.states.length < 2;
    byId("branches-alone").hidden = pathTo(episode).length === episode.states.length;
    byId("branches").replaceChildren(branchesOf(episode, (at) => this.goTo(at)));
  }

  /** Back to the state before; the step stays among the branches. */
  undo() {
    const { episode } = this.act;
    const before = pathTo(episode).at(-2);
    if (before === undefined) return;
    this.act.change(movedTo(episode, before));
    byId("act-status").textContent = "One step back; take another candidate, or the same again.";
  }

  /** @param {number} at */
  goTo(at) {
    this.act.change(movedTo(this.act.episode, at));
    byId("branches").querySelector("[aria-current]")?.focus();
  }

  async copyLink() {
    const status = byId("act-status");
    show(byId("act-error"));
    try {
      const address = new URL(await hashOf(this.act.episode), location.href).href;
      const field = byId("link");
      field.value = address;
      byId("link-box").hidden = false;
      field.select();
      const size = `${Math.ceil(address.length / 1000).toLocaleString("en")} kB`;
      const copied = await navigator.clipboard.writeText(address).then(() => "Copied", () => "Copy the selected text");
      status.textContent = `${copied}: the link holds the whole episode (${size}), not the key.`;
    } catch (error) {
      this.tell(error);
    }
  }

  /** Opens the episode of a link beside what is there, and takes it out of the address. */
  async openLink() {
    const { hash } = location;
    if (!hash.startsWith(IN_LINK)) return;
    history.replaceState(null, "", "#act");
    try {
      const opened = await episodeOf(hash);
      const { episode } = this.act;
      const untouched = episode.states.length === 1 && !episode.states[0].answer;
      this.act.change(untouched ? opened : joined(episode, opened));
      byId("act-status").textContent = "The link's episode is open.";
    } catch (error) {
      this.tell(error);
    }
  }

  /** @param {unknown} error */
  tell(error) {
    if (error instanceof NoEpisodeError) show(byId("act-error"), `No episode in this link: ${error.message}`);
    else showError(byId("act-error"), error);
  }
}
