//! `/api/v1/tools/{name}/diff` and `…/approve`: what is another about a definition that waits for an operator, and the
//! approval of what was seen.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use super::{call, routes};
use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Status, Text, Type};
use crate::catalog::approving::{ApprovalRefused, ApprovalTarget, ApprovedTools};
use crate::catalog::definition::DefinitionDigest;
use crate::catalog::definition_diff::DefinitionDiff;
use crate::catalog::snapshot::Snapshot;
use crate::policy::Principal;
use crate::proxy::Worker;

/// Most tools of a server whose differences are shown at once. All of them are in the digest.
const MAX_SHOWN_TOOLS: usize = 20;

/// Shows how definitions differ from what is accepted: of a tool, or of all tools of a server that wait.
#[utoipa::path(
    get,
    path = "/api/v1/tools/{name}/diff",
    tag = "tools",
    operation_id = "getDiff",
    params((
        "name" = String,
        Path,
        description = "The tool as `server:tool`, or a server",
        pattern = "^[^\\n]+$",
    )),
    responses(
        (status = 200, description = "What is another", body = Success<Differences>),
        (status = 404, description = "There is no such tool, and no such server"),
    )
)]
pub(super) fn diff(worker: &Worker, query: Query, name: &str) -> Result<Bytes, ApiError> {
    query.finish()?;
    let name = routes::decoded(name)?;
    let snapshot = worker.proxy.catalog.load();
    let target = target(&snapshot, &name)?;
    let tools = target.tools(&snapshot);
    Ok(encode(&Differences {
        name: target.name(),
        digest: target.digest(&tools).to_string(),
        left_out: tools.len().saturating_sub(MAX_SHOWN_TOOLS),
        tools: tools.iter().take(MAX_SHOWN_TOOLS).map(DefinitionDiff::of).collect(),
    }))
}

/// Approves what was seen: from the next call on the tools are shown and called as they are defined now.
#[utoipa::path(
    post,
    path = "/api/v1/tools/{name}/approve",
    tag = "tools",
    operation_id = "approveTool",
    params((
        "name" = String,
        Path,
        description = "The tool as `server:tool`, or a server",
        pattern = "^[^\\n]+$",
    )),
    request_body = Seen,
    responses(
        (status = 200, description = "What was approved", body = Success<ApprovedNow>),
        (status = 404, description = "There is no such tool, and no such server"),
        (status = 409, description = "Nothing waits, or it has changed since it was looked at"),
    )
)]
pub(super) async fn approve(
    worker: &Worker,
    (principal, headers, id): (&Principal, &HeaderMap, &str),
    name: &str,
    body: &[u8],
) -> Result<Bytes, ApiError> {
    let name = routes::decoded(name)?;
    let seen = Seen::read(body)?;
    let catalog = &worker.proxy.catalog;
    let target = target(&catalog.load(), &name)?;
    let approved = catalog.approve(target.clone(), seen).await;
    let note = |draft: Draft| worker.proxy.activity.note(draft);
    let draft = |status| {
        let mut draft = Draft::new(Type::Approval, call::source(headers), status);
        draft.set(Text::Principal, principal.id());
        draft.set(Text::RequestId, id);
        draft
    };
    match approved {
        Ok(ApprovedTools { tools, disk }) => {
            for (tool, digest) in &tools {
                let mut draft = draft(Status::Success);
                draft.set(Text::Server, &tool.server);
                draft.set(Text::Tool, &tool.tool);
                let told = json!({"approval": "definition", "digest": digest.to_string()});
                draft.keep(Raw::Metadata, told.to_string().as_bytes(), MAX_METADATA_BYTES);
                note(draft);
            }
            let tools = tools.iter().map(|(tool, _)| tool.to_string()).collect();
            Ok(encode(&ApprovedNow { approved: tools, not_saved: disk, time: now() }))
        }
        Err(refused) => {
            let mut draft = draft(Status::Rejected);
            let (server, tool) = match &target {
                ApprovalTarget::OneTool(name) => (&name.server, &*name.tool),
                ApprovalTarget::WholeServer(server) => (server, ""),
            };
            draft.set(Text::Server, server);
            draft.set(Text::Tool, tool);
            draft.set(Text::Error, &refused.to_string());
            note(draft);
            let status = match refused {
                ApprovalRefused::NothingWaits(_) | ApprovalRefused::Changed(_) => {
                    StatusCode::CONFLICT
                }
                ApprovalRefused::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Err(ApiError::new(status, refused))
        }
    }
}

fn target(snapshot: &Snapshot, name: &str) -> Result<ApprovalTarget, ApiError> {
    let missing =
        || ApiError::new(StatusCode::NOT_FOUND, format!("Tool or server '{name}' not found"));
    ApprovalTarget::named(snapshot, name).ok_or_else(missing)
}

fn now() -> String {
    let now = jiff::Timestamp::try_from(SystemTime::now());
    format!("{:.3}", now.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// The definitions that wait.
#[derive(Serialize, ToSchema)]
struct Differences {
    /// The tool or server.
    name: String,
    /// The identity of all that is meant: what an approval names.
    digest: String,
    /// The tools: the one, or of a server those in quarantine.
    tools: Vec<DefinitionDiff>,
    /// Tools of the server that wait, too, and are not shown here; the digest has them.
    left_out: usize,
}

/// What is approved.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Seen {
    /// The `digest` of the diff that was looked at.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    digest: String,
}

impl Seen {
    fn read(body: &[u8]) -> Result<DefinitionDigest, ApiError> {
        let bad = |problem: String| ApiError::new(StatusCode::BAD_REQUEST, problem);
        let Self { digest } = serde_json::from_slice(body)
            .map_err(|error| bad(format!("the body must be {{\"digest\": …}}: {error}")))?;
        let problem = "digest must be the 32 hexadecimal digits that the diff shows";
        DefinitionDigest::parse(&digest).ok_or_else(|| bad(problem.to_owned()))
    }
}

/// What was approved.
#[derive(Serialize, ToSchema)]
struct ApprovedNow {
    /// The tools, as `server:tool`.
    approved: Vec<String>,
    /// Why this will not outlast a restart, if it will not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    not_saved: Option<String>,
    /// When.
    #[schema(format = DateTime)]
    time: String,
}
