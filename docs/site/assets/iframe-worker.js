// A browser starts no worker for a page that is opened as a file. The search asks for one: a hidden frame stands in for it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((loaded) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          loaded(inside);
        };
      });
      frame.srcdoc = `<script src="${url}"></scr` + "ipt>";
      document.body.append(frame);
    }

    async postMessage(data) {
      const inside = await this.inside;
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
