// Preloaded into servers that listen on every interface by default, so that they listen on 127.0.0.1.

import { Server } from "node:net";

const listen = Server.prototype.listen;
Server.prototype.listen = function (port, ...rest) {
  const listening = rest.filter((each) => typeof each === "function");
  return listen.call(this, { port: Number(port), host: "127.0.0.1" }, ...listening);
};
