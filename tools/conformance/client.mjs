// client.mjs URL: acts as the client of the suite's client scenarios, with the npm client.
//
// The scenario and the revision come from the suite in MCP_CONFORMANCE_…; tools and prompts have
// PREFIX before their names where mcpproxy stands between.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const revision = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION ?? "2025-11-25";
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? "{}");
const prefix = process.env.PREFIX ?? "";

const client = new Client(
  { name: "conformance", version: "1" },
  {
    capabilities: { elicitation: { form: { applyDefaults: true } } },
    versionNegotiation: { mode: revision < "2026" ? "legacy" : { pin: revision } },
  },
);
client.setRequestHandler("elicitation/create", () => ({ action: "accept", content: { confirmed: true } }));

const tools = async () => (await client.listTools()).tools;
const call = (name, args = {}) => client.callTool({ name: prefix + name, arguments: args });

// Optional requests of a client in a scenario, which a server may refuse.
const attempt = async (act) => {
  try {
    await act();
  } catch (error) {
    console.error(String(error));
  }
};

const acts = {
  async tools_call() {
    await tools();
    await call("add_numbers", { a: 5, b: 3 });
  },
  async "elicitation-sep1034-client-defaults"() {
    client.setRequestHandler("elicitation/create", () => ({ action: "accept", content: {} }));
    await tools();
    await call("test_client_elicitation_defaults");
  },
  async "sse-retry"() {
    await tools();
    await call("test_reconnection");
  },
  async "sep-2322-client-request-state"() {
    await tools();
    await call("test_mrtr_echo_state");
    await call("test_mrtr_unrelated");
    await call("test_mrtr_no_state");
    await attempt(() => call("test_mrtr_no_result_type"));
  },
  async "http-standard-headers"() {
    for (const { name } of await tools()) await client.callTool({ name, arguments: {} });
    for (const { uri } of (await client.listResources()).resources) await client.readResource({ uri });
    for (const { name } of (await client.listPrompts()).prompts) await client.getPrompt({ name });
  },
  async "http-custom-headers"() {
    await tools();
    for (const each of context.toolCalls) await call(each.name, each.arguments);
  },
  async "http-invalid-tool-headers"() {
    for (const { name } of await tools()) {
      await attempt(() => client.callTool({ name, arguments: { region: "us-west1" } }));
    }
  },
  async "json-schema-2020-12-preservation"() {
    const focal = (await tools()).find(({ name }) => name === prefix + "json_schema_2020_12_tool");
    await call("json_schema_echo", { schema: focal.inputSchema });
  },
};

const authorized = async () => {
  await tools();
  const { content } = await call("test-tool");
  console.log(content.map(({ text }) => text).join("\n"));
};
const act = scenario.startsWith("auth/") ? authorized : (acts[scenario] ?? tools);

await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
await act();
await client.close();
