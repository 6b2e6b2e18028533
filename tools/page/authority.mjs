// MCP server that requires a login, and its authorization server. Both share one listener, which requires PKCE and
// `resource` of the client and grants every login.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';

export async function authority() {
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const { status = 200, headers = {}, body } = answer(request, Buffer.concat(chunks).toString());
    response.writeHead(status, { 'Content-Type': 'application/json', Connection: 'close', ...headers });
    response.end(body === undefined ? '' : JSON.stringify(body));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const base = `http://127.0.0.1:${server.address().port}`;
  const url = `${base}/mcp`;
  const given = { challenge: undefined, tokens: new Set() };

  function answer(request, text) {
    const { pathname, searchParams } = new URL(request.url, base);
    if (pathname === '/mcp') return request.method === 'POST' ? mcp(request, JSON.parse(text)) : { status: 405 };
    switch (pathname) {
      case '/.well-known/oauth-protected-resource/mcp':
        return { body: { resource: url, authorization_servers: [base] } };
      case '/.well-known/oauth-authorization-server':
        return { body: { issuer: base, authorization_endpoint: `${base}/authorize`, token_endpoint: `${base}/token`,
          registration_endpoint: `${base}/register`, code_challenge_methods_supported: ['S256'], response_types_supported: ['code'] } };
      case '/register':
        return { body: { client_id: 'page', redirect_uris: JSON.parse(text).redirect_uris } };
      case '/authorize': {
        assert.deepEqual([searchParams.get('code_challenge_method'), searchParams.get('resource')], ['S256', url]);
        given.challenge = searchParams.get('code_challenge');
        const to = new URL(searchParams.get('redirect_uri'));
        for (const [name, value] of [['code', 'once'], ['state', searchParams.get('state')], ['iss', base]]) to.searchParams.set(name, value);
        return { status: 302, headers: { Location: to.href } };
      }
      case '/token': {
        const asked = new URLSearchParams(text);
        const proven = createHash('sha256').update(asked.get('code_verifier') ?? '').digest('base64url') === given.challenge;
        if (!proven || asked.get('code') !== 'once') return { status: 400, body: { error: 'invalid_grant' } };
        const token = `access-${given.tokens.size + 1}`;
        given.tokens.add(token);
        return { body: { access_token: token, token_type: 'Bearer', refresh_token: 'refresh' } };
      }
      default:
        return { status: 404 };
    }
  }

  /** MCP server with one tool. */
  function mcp(request, { id, method }) {
    const token = /^Bearer (.+)$/.exec(request.headers.authorization ?? '')?.[1];
    if (!given.tokens.has(token)) {
      const where = `${base}/.well-known/oauth-protected-resource/mcp`;
      return { status: 401, headers: { 'WWW-Authenticate': `Bearer resource_metadata="${where}"` } };
    }
    if (id === undefined) return { status: 202 };
    const results = {
      initialize: { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'locked', version: '1' } },
      'tools/list': { tools: [{ name: 'who_am_i', inputSchema: { type: 'object' }, annotations: { readOnlyHint: true } }] },
      'tools/call': { content: [{ type: 'text', text: 'you' }] },
    };
    if (!results[method]) return { body: { jsonrpc: '2.0', id, error: { code: -32601, message: 'Method not found' } } };
    return { body: { jsonrpc: '2.0', id, result: results[method] } };
  }

  return {
    url,
    async end() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}
