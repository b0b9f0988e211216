// The search of mkdocs-material runs in a worker, and a page from a disk has none: there it runs in a hidden frame.
// The plugin `offline` would have a script for that from a server.
if (location.protocol === "file:") {
  self.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame.contentWindow;
      this.frame.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.importScripts = (...names) => names.reduce((before, name) => before.then(() => this.load(name)),
        Promise.resolve());
      this.begun = this.load(address);
    }
    load(address) {
      const script = this.frame.document.createElement("script");
      script.src = new URL(address, location.href).href;
      const loaded = new Promise((resolve, reject) => Object.assign(script, { onload: resolve, onerror: reject }));
      this.frame.document.body.append(script);
      return loaded;
    }
    postMessage(data) {
      this.begun.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  self.Worker = self.IFrameWorker;
}
