//! Client credentials grant (RFC 6749 §4.4, MCP extension `io.modelcontextprotocol/oauth-client-credentials`): tokens
//! without a person, for a client with a secret.
//!
//! The authorization server is found as for a login. The only token request is made here, because rmcp would prefer to post the secret. A
//! refresh token is neither expected nor kept: a renewal is another token request, sent to the endpoint of the last one. The secret is not
//! stored with the token.
//!
//! A secret is sent to only one issuer: the configured issuer, or the one that issued the last token for this URL and client.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use rmcp::transport::auth::{AuthorizationMetadata, OAuthTokenResponse};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use crate::config::ClientCredentials;
use crate::oauth::authority::{self, LoginError, TOKEN_METHODS, probe};
use crate::oauth::client::{AddressPolicy, LoginClient, LoginTransport, origin};
use crate::oauth::store::{Grant, take};
use crate::oauth::union;
use mcpproxy_runtime::io::delays::RetryDelays;

const FORM: &str = "application/x-www-form-urlencoded";
const BASIC: &str = "client_secret_basic";
const POST: &str = "client_secret_post";

/// Client, and the server for which its tokens are valid.
pub(super) struct TokenRequest<'a> {
    pub(super) url: &'a Url,
    /// Headers set by the operator.
    pub(super) headers: &'a [(String, String)],
    pub(super) client: &'a ClientCredentials,
    pub(super) transport: &'a LoginTransport,
}

impl TokenRequest<'_> {
    /// Finds the authorization server and requests a token. `before` is the stored grant for this URL, regardless of its settings.
    pub(super) async fn obtain(&self, before: Option<&Grant>) -> Result<Grant, LoginError> {
        let settings = &self.client.settings;
        let (http, policy) = self.http()?;
        let answered = probe(&http, self.url, self.headers).await;
        let answered = answered.map_err(LoginError::Unreachable)?;
        let (mut manager, metadata) = authority::find(self.url, http.clone(), &answered).await?;
        authority::check_issuer(&metadata, &settings.id, settings.issuer.as_ref(), before)?;
        let scopes = match settings.scopes.is_empty() {
            true => {
                let asked = manager.select_initial_scopes(&[]).await;
                let known = before.filter(|before| {
                    before.client.as_ref() == Some(settings)
                        && before.metadata.issuer == metadata.issuer
                });
                let granted = known.into_iter().flat_map(|known| known.scopes.iter().cloned());
                union(asked.into_iter().chain(granted))
            }
            false => settings.scopes.clone(),
        };
        let grant = Grant {
            url: self.url.to_string(),
            resource: authority::resource(&mut manager, &metadata).await?,
            metadata: authority::endpoints(&metadata),
            client_id: settings.id.clone(),
            client_secret: None,
            access_token: String::new(),
            refresh_token: None,
            scopes: Vec::new(),
            requested: scopes.clone(),
            wanted: Vec::new(),
            fruitless: 0,
            received_at: 0,
            expires_at: None,
            client: Some(settings.clone()),
        };
        self.send(&http, &policy, grant, scopes).await
    }

    /// Requests another token from the authorization server of `grant`, for the granted scopes.
    pub(super) async fn renew(&self, grant: Grant) -> Result<Grant, LoginError> {
        let scopes = match self.client.settings.scopes.is_empty() {
            true => grant.scopes.clone(),
            false => self.client.settings.scopes.clone(),
        };
        let (http, policy) = self.http()?;
        self.send(&http, &policy, grant, scopes).await
    }

    /// Same as [`renew`](Self::renew), but also for the scopes that the server has required since the last grant.
    pub(super) async fn step_up(&self, grant: Grant) -> Result<Grant, LoginError> {
        let scopes = union(grant.scopes.iter().chain(&grant.wanted).cloned());
        let grant = Grant { wanted: Vec::new(), ..grant.with_wanted_requested() };
        let (http, policy) = self.http()?;
        self.send(&http, &policy, grant, scopes).await
    }

    fn http(&self) -> Result<(LoginClient, AddressPolicy), LoginError> {
        let policy = AddressPolicy::new(self.url);
        policy.check(self.url).map_err(LoginError::Config)?;
        let client = LoginClient::new(policy.clone(), self.transport.clone());
        Ok((client.unattended(), policy))
    }

    /// Requests the token of a grant for these scopes.
    async fn send(
        &self,
        http: &LoginClient,
        policy: &AddressPolicy,
        mut grant: Grant,
        scopes: Vec<String>,
    ) -> Result<Grant, LoginError> {
        let endpoint = grant.metadata.token_endpoint.clone();
        let place = Url::parse(&endpoint).map_err(|error| unusable(error.to_string()))?;
        policy.check(&place).map_err(unusable)?;
        let listed = methods(&grant.metadata, &[TOKEN_METHODS]);
        if listed.is_some_and(|listed| !lists(listed, BASIC) && !lists(listed, POST)) {
            let why = format!("its token endpoint accepts neither {BASIC} nor {POST}");
            return Err(unusable(why));
        }
        let is_basic = is_basic(&grant.metadata, &[TOKEN_METHODS]);
        let secret = Some(&*self.client.secret);
        let scope = scopes.join(" ");
        let mut fields = vec![("grant_type", "client_credentials"), ("resource", &*grant.resource)];
        fields.extend(Some(("scope", &*scope)).filter(|_| !scope.is_empty()));
        let request = authenticated(&endpoint, &fields, &grant.client_id, secret, is_basic);
        let answer = http.request_token(request.map_err(unusable)?).await.map_err(unusable)?;
        let (status, body) = (answer.status(), answer.into_body());
        if !status.is_success() {
            return Err(refusal(&place, status, &body));
        }
        let response: OAuthTokenResponse = serde_json::from_slice(&body)
            .map_err(|_| unusable("its token response cannot be read".to_owned()))?;
        // If the response states no scope, the requested scopes are granted (RFC 6749 §5.1).
        grant.scopes = scopes;
        let grant = take(grant, &response).map_err(unusable)?;
        Ok(Grant { refresh_token: None, ..grant })
    }
}

fn unusable(why: String) -> LoginError {
    LoginError::Unusable(why)
}

/// Reason why the token endpoint at `place` did not issue a token. Statuses of a temporary failure are not a denial.
fn refusal(place: &Url, status: StatusCode, body: &[u8]) -> LoginError {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
        error_description: Option<String>,
    }
    let why = match serde_json::from_slice::<Refusal>(body) {
        Ok(Refusal { error, error_description: Some(more) }) => format!("{error}: {more}"),
        Ok(Refusal { error, error_description: None }) => error,
        Err(_) => {
            format!("the token endpoint at {} answers HTTP {}", origin(place), status.as_u16())
        }
    };
    let is_temporary = matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
    );
    match status.is_client_error() && !is_temporary {
        true => LoginError::Denied(why),
        false => unusable(why),
    }
}

/// First list of client authentication methods in the metadata, under any of these names.
fn methods<'a>(metadata: &'a AuthorizationMetadata, names: &[&str]) -> Option<&'a [Value]> {
    let mut lists = names.iter().filter_map(|name| metadata.additional_fields.get(*name));
    lists.find_map(Value::as_array).map(Vec::as_slice)
}

fn lists(methods: &[Value], method: &str) -> bool {
    methods.iter().any(|it| it.as_str() == Some(method))
}

/// Whether the client's secret is sent in a header: if the first of these lists in the metadata allows it, or if no list exists (RFC 8414
/// §2).
pub(super) fn is_basic(metadata: &AuthorizationMetadata, names: &[&str]) -> bool {
    methods(metadata, names).is_none_or(|methods| lists(methods, BASIC) || !lists(methods, POST))
}

/// POST of a form with the client's authentication (RFC 6749 §2.3.1).
pub(super) fn authenticated(
    endpoint: &str,
    fields: &[(&str, &str)],
    id: &str,
    secret: Option<&str>,
    is_basic: bool,
) -> Result<Request<Vec<u8>>, String> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    let mut request = Request::post(endpoint).header(CONTENT_TYPE, FORM);
    match secret {
        Some(secret) if is_basic => {
            let mut header = HeaderValue::from_str(&format!("Basic {}", basic(id, secret)))
                .map_err(|error| error.to_string())?;
            header.set_sensitive(true);
            request = request.header(AUTHORIZATION, header);
        }
        Some(secret) => {
            form.append_pair("client_id", id).append_pair("client_secret", secret);
        }
        None => {
            form.append_pair("client_id", id);
        }
    }
    request.body(form.finish().into_bytes()).map_err(|error| error.to_string())
}

/// Id and secret, encoded for the header.
pub(crate) fn basic(id: &str, secret: &str) -> String {
    let encoded =
        |text: &str| -> String { form_urlencoded::byte_serialize(text.as_bytes()).collect() };
    STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)))
}

/// Minimum and maximum delay after refusals, before jitter, which may double them.
const REFUSED_DELAYS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));
/// Minimum and maximum delay after temporary failures.
const FAILED_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Pause between one server's token requests. A refused client asks less and less often, regardless of the number of calls.
#[derive(Debug)]
pub(super) struct Pause {
    /// End of the pause, and the reason.
    current: Option<(Instant, String)>,
    refused: RetryDelays,
    failed: RetryDelays,
}

impl Default for Pause {
    fn default() -> Self {
        let delays = |(min, max)| RetryDelays::new(min, max);
        Self { current: None, refused: delays(REFUSED_DELAYS), failed: delays(FAILED_DELAYS) }
    }
}

impl Pause {
    /// Reason of the current pause.
    pub(super) fn reason(&self, now: Instant) -> Option<&str> {
        let current = self.current.as_ref().filter(|(until, _)| now < *until);
        current.map(|(_, reason)| &**reason)
    }

    /// Begins a pause after an error. If the server is unreachable, its connection attempts determine the pace.
    pub(super) fn fail(&mut self, error: &LoginError, reason: String, now: Instant) {
        let delay = match error {
            LoginError::Unreachable(_) => return,
            LoginError::Config(_)
            | LoginError::NoUrl
            | LoginError::NotAsked(_)
            | LoginError::Denied(_) => self.refused.next_delay(),
            LoginError::Unusable(_) | LoginError::Late(_) | LoginError::Store(_) => {
                self.failed.next_delay()
            }
        };
        self.current = Some((now + delay, reason));
    }

    /// Begins a pause even though a token exists, because the server has rejected earlier ones.
    pub(super) fn rest(&mut self, reason: String, now: Instant) {
        self.current = Some((now + self.refused.next_delay(), reason));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(methods: Value) -> AuthorizationMetadata {
        let mut metadata = AuthorizationMetadata::default();
        metadata.additional_fields.insert(TOKEN_METHODS.to_owned(), methods);
        metadata
    }

    #[test]
    fn id_6_secret_is_sent_in_a_header_unless_only_the_form_is_listed() {
        for (methods, expected) in [
            (json!(null), true),
            (json!(["client_secret_basic"]), true),
            (json!(["client_secret_post", "client_secret_basic"]), true),
            (json!(["private_key_jwt", "client_secret_post"]), false),
        ] {
            assert_eq!(
                is_basic(&metadata(methods.clone()), &[TOKEN_METHODS]),
                expected,
                "{methods}"
            );
        }
        let sent = |is_basic| {
            let request = authenticated("https://as.example/", &[], "c 1", Some("p:w"), is_basic);
            let (head, body) = request.unwrap().into_parts();
            let header = head.headers.get(AUTHORIZATION);
            assert!(header.is_none_or(HeaderValue::is_sensitive));
            let header = header.map(|header| header.to_str().unwrap().to_owned());
            (header, String::from_utf8(body).unwrap())
        };
        // Base64 of `c+1:p%3Aw`.
        assert_eq!(sent(true), (Some("Basic YysxOnAlM0F3".to_owned()), String::new()));
        assert_eq!(sent(false), (None, "client_id=c+1&client_secret=p%3Aw".to_owned()));
    }

    #[test]
    fn id_6_refusals_of_a_token_endpoint_differ_from_failures() {
        let place = Url::parse("https://as.example/token?k=s3cret").unwrap();
        let of = |status: u16, body: &str| {
            refusal(&place, StatusCode::from_u16(status).unwrap(), body.as_bytes())
        };
        for (status, body, expected) in [
            (401, r#"{"error":"invalid_client"}"#, "invalid_client"),
            (400, r#"{"error":"invalid_scope","error_description":"no"}"#, "invalid_scope: no"),
            (404, "<html>", "the token endpoint at https://as.example answers HTTP 404"),
        ] {
            let error = of(status, body);
            assert!(matches!(&error, LoginError::Denied(why) if why == expected), "{error}");
        }
        for status in [302, 408, 429, 500, 503] {
            let error = of(status, r#"{"error":"temporarily_unavailable"}"#);
            assert!(matches!(error, LoginError::Unusable(_)), "{status}: {error}");
        }
    }

    #[test]
    fn id_6_pauses_after_refusals_grow_up_to_a_bound_and_end() {
        let denied = LoginError::Denied("invalid_client".to_owned());
        let mut pause = Pause::default();
        let mut now = Instant::now();
        let (min, max) = REFUSED_DELAYS;
        let mut base = min;
        for _ in 0..8 {
            pause.fail(&denied, "why".to_owned(), now);
            assert_eq!(pause.reason(now + base - Duration::from_millis(1)), Some("why"));
            now += 2 * base;
            assert_eq!(pause.reason(now), None);
            base = (2 * base).min(max);
        }
        pause.fail(&LoginError::Unreachable(String::new()), "away".to_owned(), now);
        assert_eq!(pause.reason(now), None, "connection attempts have a backoff of their own");
        pause.fail(&LoginError::Unusable(String::new()), "why".to_owned(), now);
        assert_eq!(pause.reason(now), Some("why"));
        assert_eq!(
            pause.reason(now + 2 * FAILED_DELAYS.0),
            None,
            "a temporary failure is retried soon"
        );
    }
}
