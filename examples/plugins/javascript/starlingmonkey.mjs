// Builds my-plugin.wasm with StarlingMonkey, the JavaScript engine of Firefox, in place of QuickJS.
import { writeFile } from "node:fs/promises";
import { componentize } from "@bytecodealliance/componentize-js";

const { component } = await componentize({
  sourcePath: "plugin.js",
  witPath: "wit",
  worldName: "transform-plugin",
  // Plugins are not given any of it.
  disableFeatures: ["random", "stdio", "clocks", "http", "fetch-event"],
});
await writeFile("my-plugin.wasm", component);
