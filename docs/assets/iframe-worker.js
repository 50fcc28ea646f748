/* Search runs in a worker, and browsers refuse workers to pages opened from disk. There, a hidden frame does the same. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inside = frame.contentWindow
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script")
          Object.assign(script, { src: new URL(src, document.baseURI).href, onload: resolve, onerror: reject })
          inside.document.documentElement.append(script)
        })
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => urls.reduce((last, next) => last.then(() => load(next)), Promise.resolve())
      this.send = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      this.end = () => frame.remove()
      this.ready = load(url)
      this.addEventListener("message", (event) => this.onmessage?.(event))
    }
    postMessage(data) {
      this.ready.then(() => this.send(data))
    }
    terminate() {
      this.end()
    }
  }
}
