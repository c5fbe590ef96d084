// Search from a folder: browsers start no worker from a local file. Here its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => this.start(new URL(url, location)), { once: true });
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.addEventListener("load", () => {
        this.postMessage = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
        this.waiting.forEach(this.postMessage);
      });
      inside.document.body.append(script);
    }

    postMessage(data) {
      this.waiting.push(data);
    }
  };
}
