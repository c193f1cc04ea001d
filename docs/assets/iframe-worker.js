// A browser starts no workers for pages that are opened from disk. There, search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === this.inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const page = this.inside.document;
      page.open();
      page.write(`<body><script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done) =>
          document.body.append(Object.assign(document.createElement("script"), { src: url, onload: done })))));
      <\/script><script src="${url}"><\/script></body>`);
      page.close();
      this.ready = new Promise((done) => this.inside.addEventListener("load", done));
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", structuredClone({ data }))));
    }
  };
}
