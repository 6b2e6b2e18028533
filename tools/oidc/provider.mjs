// A small OpenID provider (npm: oidc-provider) with one user, one public client and its consent pages, on loopback.
//
//     node provider.mjs PORT AUDIENCE REDIRECT_URI
//
// Its access tokens are JWTs (RFC 9068) for the resource that the client names (RFC 8707), signed with ES256.
import { generateKeyPairSync } from 'node:crypto';
import Provider from 'oidc-provider';

const [port, audience, redirect] = process.argv.slice(2);
const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
const jwk = { ...privateKey.export({ format: 'jwk' }), kid: 'one', alg: 'ES256', use: 'sig' };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'agent',
    token_endpoint_auth_method: 'none',
    redirect_uris: [redirect],
    grant_types: ['authorization_code'],
    response_types: ['code'],
    application_type: 'native',
    id_token_signed_response_alg: 'ES256',
  }],
  jwks: { keys: [jwk] },
  cookies: { keys: ['a key for cookies that guard nothing'] },
  scopes: ['openid', 'mcp'],
  extraTokenClaims: () => ({ groups: ['dev', 'ops'] }),
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  features: {
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({
        scope: 'mcp',
        audience: resource,
        accessTokenFormat: 'jwt',
        accessTokenTTL: 300,
        jwt: { sign: { alg: 'ES256' } },
      }),
    },
  },
});
provider.listen(Number(port), '127.0.0.1', () => console.log(`an issuer for ${audience}`));
