// Runs SQL on traces with Perfetto's trace_processor, as WebAssembly under Node.
//
//     node query.mjs FOLDER TRACE QUERIES
//
// FOLDER holds trace_processor.wasm, the glue engine_bundle.node.js and engine.mjs. QUERIES is a file with a JSON array
// of SQL statements; standard output gets a JSON array with, for each, an array of rows, which are objects by column.

import {readFileSync} from 'node:fs';
import {join, resolve} from 'node:path';
import {pathToFileURL} from 'node:url';
import vm from 'node:vm';

const CHUNK = 32 << 20;
const [folder, trace, asked] = process.argv.slice(2);
const queries = JSON.parse(readFileSync(asked, 'utf8'));

// The glue is a browser's worker. Node lacks memory64 behind a flag, fetches no files, and has no worker scope.
function forNode(glue) {
  const edits = [
    ['this.useMemory64 = hasMemory64Support();', 'this.useMemory64 = false;'],
    ['locateFile: (s) => s,', 'locateFile: (s) => s, wasmBinary: globalThis.wasmBytes,'],
    [
      'onRuntimeInitialized: () => deferredRuntimeInitialized.resolve(),',
      'onRuntimeInitialized: () => { deferredRuntimeInitialized.resolve(); globalThis.started(); },',
    ],
    [
      'const wasmBridge = new wasm_bridge_1.WasmBridge();',
      'const wasmBridge = new wasm_bridge_1.WasmBridge(); globalThis.bridge = wasmBridge;',
    ],
  ];
  for (const [from, to] of edits) {
    if (!glue.includes(from)) throw new Error(`the glue lacks: ${from}`);
    glue = glue.replace(from, to);
  }
  return glue;
}

globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function WorkerGlobalScope() {};
globalThis.location = {href: pathToFileURL(resolve(folder)).href + '/'};
globalThis.wasmBytes = new Uint8Array(readFileSync(join(folder, 'trace_processor.wasm')));
const started = new Promise((done) => { globalThis.started = done; });
console.warn = () => {};
console.log = () => {};

const {EngineBase} = await import(pathToFileURL(resolve(folder, 'engine.mjs')).href);

class Engine extends EngineBase {
  constructor(port) {
    super();
    this.mode = 'WASM';
    this.id = 'trace_processor';
    this.port = port;
    this.failed_ = new Promise((_, fail) => {
      port.onmessage = (message) => {
        try {
          this.onRpcResponseBytes(message.data);
        } catch (error) {
          fail(error);
        }
      };
    });
  }

  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}

vm.runInThisContext(forNode(readFileSync(join(folder, 'engine_bundle.node.js'), 'utf8')));
await started;
// What waits for the start comes first.
await new Promise((done) => setImmediate(done));
const channel = new MessageChannel();
globalThis.bridge.initialize(channel.port1);
const engine = new Engine(channel.port2);

async function run() {
  const bytes = new Uint8Array(readFileSync(trace));
  for (let offset = 0; offset < bytes.length; offset += CHUNK) {
    await engine.parse(bytes.subarray(offset, offset + CHUNK));
  }
  await engine.notifyEof();
  const results = [];
  for (const query of queries) {
    const result = await engine.query(query);
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
      const cells = result.columns().map((column) => [column, row.get(column)]);
      rows.push(Object.fromEntries(cells));
    }
    results.push(rows);
  }
  return results;
}

// Numbers of 64 bits stay exact: they are written as numbers, of any length.
function json(value) {
  if (typeof value === 'bigint') return value.toString();
  if (Array.isArray(value)) return `[${value.map(json).join(',')}]`;
  if (value !== null && typeof value === 'object') {
    return `{${Object.entries(value).map(([key, cell]) => `${JSON.stringify(key)}:${json(cell)}`).join(',')}}`;
  }
  return JSON.stringify(value ?? null);
}

const results = await Promise.race([run(), engine.failed_]);
process.stdout.write(json(results) + '\n', () => process.exit(0));
