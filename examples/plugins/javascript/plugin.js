// my-plugin: drops bad readings, converts °C to °F, and adds the site that the config names.
//
// `import { log } from "waystation:plugin/log@0.1.0"` and `import { get, set } from "waystation:plugin/state@0.1.0"` work, too.
// There is no clock but `now`, and no randomness.
import { decode, encode } from "./utf8.js";

let site = "plant";

export const transform = {
  // What is thrown here is shown to the operator, and the transform does not start.
  init(config, _place) {
    const given = JSON.parse(config);
    const unknown = Object.keys(given).find((key) => key !== "site");
    if (unknown !== undefined) throw `config: there is no key ${JSON.stringify(unknown)}`;
    if ("site" in given && typeof given.site !== "string") throw "config.site must be a text";
    site = given.site ?? site;
  },

  // One outcome for each record, in the same order: keep, drop, payload, replace, split or reject.
  process(_now, records) {
    return records.map((record) => outcome(record.payload));
  },
};

function outcome(payload) {
  let reading;
  try {
    reading = JSON.parse(decode(payload));
  } catch {
    // Said below.
  }
  if (typeof reading !== "object" || reading === null || Array.isArray(reading)) {
    return { tag: "reject", val: "the payload is no JSON object" };
  }
  if (reading.status === "bad") return { tag: "drop" };
  if (typeof reading.temperature_c === "number") {
    reading.temperature_f = Math.round((reading.temperature_c * 1.8 + 32) * 1000) / 1000;
    delete reading.temperature_c;
  }
  reading.site = site;
  return { tag: "payload", val: encode(JSON.stringify(reading)) };
}
