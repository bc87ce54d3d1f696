// A handler of SensorPlugin in JavaScript, without packages: node examples/handler.mjs STATUS_SOCKET
// It accepts each plugin whose name ends with .example.com, and reports it as healthy.
import http from "node:http";
import readline from "node:readline";

const socketPath = process.argv[2], path = "/v1/handlers/SensorPlugin";
const held = new Map();
let session;

function post(what, body) {
  const request = http.request({ socketPath, path: `${path}/${what}`, method: "POST" }, (answer) => answer.resume());
  request.on("error", (error) => console.error(`${what}: ${error.message}`));
  request.end(JSON.stringify({ session, ...body }));
}

function answer(ask) {
  const { instance, name, socket } = ask.plugin ?? {};
  if (ask.ask === "validate" && !name.endsWith(".example.com")) return { id: ask.id, error: `${name} is not ours` };
  if (ask.ask === "register") held.set(instance, { instance, name, socket });
  if (ask.ask === "deregister") held.delete(instance);
  return { id: ask.id };
}

function take(line) {
  if (line.hello) {
    session = line.hello.session;
    post("held", { held: [...held.values()] }); // At most 256 at once.
  } else if (line.ask) {
    console.log(line.ask, line.plugin?.name ?? "");
    post("answers", { answers: [answer(line)] });
    if (line.ask === "follow") post("health", { plugins: [{ instance: line.plugin.instance, health: "healthy" }] });
  } else if (line.error) console.error(line.error);
}

function connect() {
  const again = () => setTimeout(connect, 1000); // The daemon may be upgraded.
  http.get({ socketPath, path }, (stream) => {
    const lines = readline.createInterface({ input: stream, crlfDelay: Infinity });
    lines.on("line", (line) => line && take(JSON.parse(line))).on("close", again);
    stream.on("error", () => {}); // The end of the lines follows.
  }).on("error", again);
}
connect();
