// MCP server over stdio for the page test. It logs to stderr, has a tool with a name of maximum length, and has more
// tools than one response contains.

import { createInterface } from 'node:readline';

export const LONG_NAME = `read_${'a_name_that_is_rather_long_'.repeat(3)}end`;
const MORE = 120;

const tool = (name) => ({ name, description: `Does what ${name} says.`, inputSchema: { type: 'object', properties: { note: { type: 'string' } } }, annotations: { readOnlyHint: true } });
const tools = [tool('say'), tool(LONG_NAME), ...Array.from({ length: MORE }, (_, at) => tool(`number_${String(at).padStart(3, '0')}`))];

function answer({ method, params }) {
  switch (method) {
    case 'initialize':
      return { protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'talker', version: '1' } };
    case 'tools/list':
      return { tools };
    case 'tools/call':
      console.error(`asked: ${params.arguments?.note ?? params.name}`);
      return { content: [{ type: 'text', text: 'done' }] };
    default:
      return {};
  }
}

if (process.argv[1] === import.meta.filename) {
  console.error('ready: the first line');
  createInterface({ input: process.stdin }).on('line', (line) => {
    const message = JSON.parse(line);
    if (message.id !== undefined) console.log(JSON.stringify({ jsonrpc: '2.0', id: message.id, result: answer(message) }));
  });
}
