//! `/api/v1/tokens…`: creation, listing, rotation and revocation of agent tokens; `/api/v1/principals…`: their
//! scopes. A secret is returned once and never shown again.
//!
//! Each change is recorded as a `config_change` by the admin.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::query_parameters::decode_segment;
use super::request::{ApiRequest, read_body};
use super::response::{ApiError, Success, encode};
use mcpproxy_activity::record::{Draft, Raw, Source, Status, Text, Type, words};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::Principal;
use mcpproxy_policy::identity::{
    NewAgentToken, StoredToken, TokenChange, TokenChangeError, TokenChanged, TokenFileError,
};
use mcpproxy_policy::intent::Operation;

/// An agent token without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentToken)]
struct ShownToken {
    /// The token's name; the principal in records is `token:NAME`.
    name: String,
    /// Servers that it grants access to; empty means all.
    servers: Vec<String>,
    /// Tools that it grants access to, by name or pattern; empty means all.
    tools: Vec<String>,
    /// Operations that it permits; empty means all.
    #[schema(schema_with = operations)]
    operations: Vec<Operation>,
    /// Time at which it was created.
    #[schema(value_type = String, format = DateTime)]
    created: Timestamp,
    /// Time at which it expires; null if it never does.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires: Option<Timestamp>,
    /// Whether it has expired.
    expired: bool,
}

/// All tokens, ordered by name.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownTokens {
    tokens: Vec<ShownToken>,
}

/// A new secret, shown only once.
#[derive(Serialize, ToSchema)]
pub struct ShownSecret {
    /// The token's name.
    name: String,
    /// The secret.
    token: String,
    /// Time at which it expires; null if it never does.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires: Option<Timestamp>,
}

/// A revoked token.
#[derive(Serialize, ToSchema)]
pub struct ShownRevoked {
    /// The token's name.
    name: String,
    /// Always true.
    revoked: bool,
}

/// Result of a change.
#[derive(Serialize)]
#[serde(untagged)]
pub enum ShownChange {
    Secret(ShownSecret),
    Revoked(ShownRevoked),
}

/// A token to create. An omitted or empty list does not restrict it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "describes the body in OpenAPI; it is parsed as a NewAgentToken")]
struct TokenRequest {
    /// Name of letters, digits, `-`, `_` and `.`.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    name: String,
    /// Names of servers in the config that the token grants access to.
    #[schema(required = false, schema_with = names)]
    servers: Vec<String>,
    /// Tools as `server:tool` or the tool's own name, with `*` for any characters.
    #[schema(required = false, schema_with = names)]
    tools: Vec<String>,
    /// Operations that the token permits.
    #[schema(required = false, schema_with = operations)]
    operations: Vec<Operation>,
    /// Lifetime in seconds; unlimited if omitted.
    #[schema(required = false, minimum = 1, maximum = 316_224_000)]
    expires_in: u64,
}

/// Schema of a list of names or patterns.
fn names() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    let name = utoipa::openapi::ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::Type::String)
        .min_length(Some(1))
        .max_length(Some(256));
    utoipa::openapi::schema::ArrayBuilder::new().items(name).max_items(Some(256)).into()
}

fn operations() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    let word = words(Operation::ALL.map(Operation::as_str));
    utoipa::openapi::schema::ArrayBuilder::new().items(word).max_items(Some(256)).into()
}

/// Lists the agent tokens, without their secrets.
#[utoipa::path(
    get,
    path = "/api/v1/tokens",
    tag = "tokens",
    operation_id = "listTokens",
    responses(
        (status = 200, description = "All tokens, by name", body = Success<ShownTokens>),
        (status = 500, description = "The tokens cannot be read"),
    )
)]
pub(super) async fn list(
    ApiRequest { worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    Ok(encode(&shown_tokens(&stored(worker).await?, SystemTime::now())))
}

/// A principal, with the scope of its token.
#[derive(Serialize, ToSchema)]
#[schema(as = Principal)]
struct ShownPrincipal {
    /// The principal's id.
    name: String,
    /// The agent token; null if the principal is none, or the token is revoked.
    #[schema(required)]
    token: Option<ShownToken>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Principals)]
struct ShownPrincipals {
    /// The agent tokens as principals, by name.
    principals: Vec<ShownPrincipal>,
}

/// Lists the agent tokens as principals, with their scopes and without their secrets. Other principals are known only
/// from their records. A page session may use this endpoint, because it neither creates nor changes a credential.
#[utoipa::path(
    get,
    path = "/api/v1/principals",
    tag = "policy",
    operation_id = "listPrincipals",
    responses(
        (status = 200, description = "All agent tokens", body = Success<ShownPrincipals>),
        (status = 500, description = "The tokens cannot be read"),
    )
)]
pub(super) async fn principals(
    ApiRequest { worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let ShownTokens { tokens } = shown_tokens(&stored(worker).await?, SystemTime::now());
    let principals = tokens
        .into_iter()
        .map(|token| ShownPrincipal { name: format!("token:{}", token.name), token: Some(token) });
    Ok(encode(&ShownPrincipals { principals: principals.collect() }))
}

/// Shows a principal and the scope of its agent token, without the secret. A page session may use this endpoint, because
/// it neither creates nor changes a credential.
#[utoipa::path(
    get,
    path = "/api/v1/principals/{name}",
    tag = "policy",
    operation_id = "getPrincipal",
    params(("name" = String, Path, description = "The principal's id, such as `token:NAME`")),
    responses(
        (status = 200, description = "The principal", body = Success<ShownPrincipal>),
        (status = 500, description = "The tokens cannot be read"),
    )
)]
pub(super) async fn principal(
    ApiRequest { worker, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let name = decode_segment(segment)?;
    let mut token = None;
    if let Some(wanted) = name.strip_prefix("token:") {
        let ShownTokens { tokens } = shown_tokens(&stored(worker).await?, SystemTime::now());
        token = tokens.into_iter().find(|it| it.name == wanted);
    }
    Ok(encode(&ShownPrincipal { name, token }))
}

/// Reads the tokens on a blocking thread.
pub(super) async fn stored(worker: &Worker) -> Result<Vec<StoredToken>, ApiError> {
    let identity = std::sync::Arc::clone(&worker.proxy.identity);
    let read = tokio::task::spawn_blocking(move || identity.kept()).await;
    read.map_err(ApiError::internal)?.map_err(ApiError::internal)
}

/// Creates an agent token.
#[utoipa::path(
    post,
    path = "/api/v1/tokens",
    tag = "tokens",
    operation_id = "createToken",
    request_body(content = TokenRequest, description = "The name and the restrictions of the token."),
    responses(
        (status = 200, description = "The secret, shown only once", body = Success<ShownSecret>),
        (status = 400, description = "The body or the query is invalid"),
        (status = 408, description = "The body was not received in time"),
        (status = 409, description = "A token of that name exists, or there are too many"),
        (status = 413, description = "The body is too large"),
        (status = 500, description = "The tokens cannot be stored"),
    )
)]
pub(super) async fn create(
    ApiRequest { worker, principal, query, body, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let body = read_body(query, body).await?;
    let new: NewAgentToken = serde_json::from_slice(&body).map_err(ApiError::bad_body)?;
    change(worker, principal, "token_created", new.name.clone(), TokenChange::Create(new)).await
}

/// Replaces the secret of an agent token. The previous secret becomes invalid immediately.
#[utoipa::path(
    post,
    path = "/api/v1/tokens/{name}/rotate",
    tag = "tokens",
    operation_id = "rotateToken",
    params(("name" = String, Path, description = "The token's name")),
    responses(
        (status = 200, description = "The secret, shown only once", body = Success<ShownSecret>),
        (status = 404, description = "There is no such token"),
        (status = 500, description = "The tokens cannot be stored"),
    )
)]
pub(super) async fn rotate(
    ApiRequest { worker, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let name = decode_segment(segment)?;
    change(worker, principal, "token_rotated", name.clone(), TokenChange::Rotate(name)).await
}

/// Revokes an agent token. The token becomes invalid immediately.
#[utoipa::path(
    delete,
    path = "/api/v1/tokens/{name}",
    tag = "tokens",
    operation_id = "revokeToken",
    params(("name" = String, Path, description = "The token's name")),
    responses(
        (status = 200, description = "The token is revoked", body = Success<ShownRevoked>),
        (status = 404, description = "There is no such token"),
        (status = 500, description = "The tokens cannot be stored"),
    )
)]
pub(super) async fn revoke(
    ApiRequest { worker, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    let name = decode_segment(segment)?;
    change(worker, principal, "token_revoked", name.clone(), TokenChange::Revoke(name)).await
}

/// Applies a change on a blocking thread, and records it.
async fn change(
    worker: &Worker,
    principal: &Principal,
    what: &'static str,
    name: String,
    change: TokenChange,
) -> Result<Bytes, ApiError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(ApiError::internal)?;
    let identity = std::sync::Arc::clone(&worker.proxy.identity);
    let changing =
        tokio::task::spawn_blocking(move || identity.change(change, random, SystemTime::now()));
    let changed = changing.await.map_err(ApiError::internal)?.map_err(|error| {
        let status = match &error {
            TokenChangeError::Name(_)
            | TokenChangeError::LongName(..)
            | TokenChangeError::List(_)
            | TokenChangeError::Expires => StatusCode::BAD_REQUEST,
            TokenChangeError::Exists(_) | TokenChangeError::Full => StatusCode::CONFLICT,
            TokenChangeError::Missing(_) => StatusCode::NOT_FOUND,
            TokenChangeError::File(
                TokenFileError::Open { .. }
                | TokenFileError::Missing { .. }
                | TokenFileError::Broken { .. }
                | TokenFileError::Io { .. },
            ) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error)
    })?;
    let mut draft = Draft::new(Type::ConfigChange, Source::Api, Status::Success);
    draft.set(Text::Principal, principal.id());
    let metadata = json!({"name": name, "change": what}).to_string();
    draft.keep(Raw::Metadata, metadata.as_bytes(), metadata.len());
    worker.proxy.activity.note(draft);
    Ok(encode(&shown_change(changed)))
}

/// Lists tokens; `now` decides which have expired.
pub fn shown_tokens(kept: &[StoredToken], now: SystemTime) -> ShownTokens {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let texts = |list: &[Box<str>]| list.iter().map(|text| text.to_string()).collect();
    let shown = |token: &StoredToken| ShownToken {
        name: token.name.to_string(),
        servers: texts(&token.servers),
        tools: texts(&token.tools),
        operations: token.operations.clone(),
        created: timestamp(Duration::from_micros(token.created)),
        expires: token.expires.map(|seconds| timestamp(Duration::from_secs(seconds))),
        expired: token.expires.is_some_and(|seconds| now.as_secs() >= seconds),
    };
    ShownTokens { tokens: kept.iter().map(shown).collect() }
}

pub fn shown_change(changed: TokenChanged) -> ShownChange {
    match changed {
        TokenChanged::Made(made) => ShownChange::Secret(ShownSecret {
            name: made.name,
            token: made.secret.expose().to_owned(),
            expires: made.expires.map(|seconds| timestamp(Duration::from_secs(seconds))),
        }),
        TokenChanged::Revoked(name) => ShownChange::Revoked(ShownRevoked { name, revoked: true }),
    }
}

/// Converts a time since 1970, capped at the latest representable one.
fn timestamp(since: Duration) -> Timestamp {
    let time = jiff::SignedDuration::try_from(since).ok();
    time.and_then(|since| Timestamp::UNIX_EPOCH.checked_add(since).ok()).unwrap_or(Timestamp::MAX)
}
