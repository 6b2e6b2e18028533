//! One call of an upstream's tool, from its arguments to its record.
//!
//! [`call`] reads like the list in `lib.rs`. Every outcome leaves by `CallRecord`, which writes the
//! record even if the client goes away in the middle (ACT-1). Deliberately ignorant of HTTP and
//! stdio: a face takes the pieces of the reply and dresses them.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::activity::record::{Decision, Policy, Raw, Source, Status, Type, Verdict};
use crate::catalog::snapshot::compiling;
use crate::intent::{self, CallArguments, Denial, Operation, Permit, Warning};
use crate::io::clock;
use crate::mcp::revisions::Era;
use crate::output::{AnswerMember, Mode};
use crate::proxy::call_record::{CallRecord, Rejection};
use crate::proxy::client::Client;
use crate::proxy::dispatch::{self, Caching, Channel};
use crate::proxy::exchange::{Exchange, Subject};
use crate::proxy::params::progress_token;
use crate::proxy::relay::Relay;
use crate::proxy::reply::{Aborted, Piece, Refusal, RefusalKind, Reply};
use crate::proxy::{Worker, log_routing, retrieve};
use crate::tool::{OutputSchema, Tool, ToolName};
use crate::upstream::{Answer, CallExtras};
use crate::wire::splice::Splice;

/// How long a call waits for a server's first set of tools after a start, within its time.
const CATALOG_WAIT: Duration = Duration::from_secs(30);

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The door they came in by.
    pub source: Source,
    /// The request's id.
    pub request_id: Bytes,
    /// The name of one who is no `client`, or empty.
    pub name: Box<str>,
    /// Who can be told and asked something before the answer, if anyone can.
    pub client: Option<(Arc<Client>, Channel)>,
}

impl Caller {
    /// The MCP session, or empty.
    pub(super) fn session_id(&self) -> &str {
        self.client.as_ref().map_or("", |(client, _)| &client.session_id)
    }

    /// The client's own name, or empty.
    pub(super) fn client_name(&self) -> &str {
        self.client.as_ref().map_or(&self.name, |(client, _)| &client.name)
    }
}

/// What a call tool is given.
#[derive(Debug)]
pub struct Given {
    /// Its arguments: one JSON object in which the face has found no duplicate key.
    pub arguments: Bytes,
    /// An intent that stands beside them; one among them must agree with it.
    pub intent: Option<Box<RawValue>>,
}

/// Calls the tool that the arguments of a call tool name. What stands `beside` them goes with it.
///
/// # Errors
///
/// [`Aborted`] when the answer broke off after its first byte had gone on.
pub async fn call(
    worker: Rc<Worker>,
    caller: Caller,
    variant: Operation,
    given: Given,
    beside: CallExtras,
    reply: Reply,
) -> Result<(), Aborted> {
    let mut call_record =
        match CallRecord::open(&worker, Type::ToolCall, &caller, variant.variant(), &reply).await {
            Ok(call_record) => call_record,
            Err(refusal) => {
                reply.put(Piece::Refused(refusal));
                return Ok(());
            }
        };
    let prepared = prepare(&worker, &mut call_record, variant, &given).await;
    run(worker, call_record, caller.client, prepared, beside, reply).await
}

/// Sends a call that was prepared, or tells why it was not, and sees it through.
pub(super) async fn run(
    worker: Rc<Worker>,
    mut call_record: CallRecord,
    client: Option<(Arc<Client>, Channel)>,
    prepared: Result<(Permit, Bytes), Rejection>,
    beside: CallExtras,
    reply: Reply,
) -> Result<(), Aborted> {
    let token = beside.meta.as_ref().and_then(progress_token);
    // What comes from no client counts as one of its own, as long as it takes.
    let anonymous = client.is_none().then(log_routing::anonymous);
    let user = client.as_ref().map(|(client, _)| client).or(anonymous.as_ref());
    let sent = match prepared {
        Ok((permit, arguments)) => {
            send(&worker, &mut call_record, user, permit, arguments, beside).await
        }
        Err(stop) => Err(stop),
    };
    match sent {
        Ok((permit, answer)) => {
            let relay = Relay::new(client, token);
            let exchange =
                Exchange::new(worker, Subject::Tool(permit), answer, call_record, relay, reply);
            let ended = exchange.run().await;
            if let Some(anonymous) = anonymous {
                anonymous.was_active(clock::lately());
            }
            ended
        }
        Err(stop) => {
            call_record.stop(stop).await;
            Ok(())
        }
    }
}

/// Answers `retrieve_tools` (FR-021..024).
///
/// # Errors
///
/// None; the type is that of every call.
pub async fn retrieve_tools(
    worker: Rc<Worker>,
    caller: Caller,
    raw: Bytes,
    reply: Reply,
) -> Result<(), Aborted> {
    let era = caller.client.as_ref().map_or(Era::Legacy, |(client, _)| client.era);
    let mut call_record =
        match CallRecord::open(&worker, Type::InternalToolCall, &caller, "", &reply).await {
            Ok(call_record) => call_record,
            Err(refusal) => {
                reply.put(Piece::Refused(refusal));
                return Ok(());
            }
        };
    call_record.name("", "retrieve_tools");
    call_record.keep(Raw::Arguments, &raw);
    worker.proxy.upstreams.nudge();
    let found = retrieve::retrieve(&raw, &worker.proxy.catalog.load(), worker.proxy.tools_limit);
    let (status, error, piece) = match found {
        Ok(result) => {
            let result = match era {
                Era::Legacy => result,
                Era::Modern => {
                    let result = String::from_utf8_lossy(&result);
                    dispatch::own_result(era, &result, Caching::No).into_owned().into()
                }
            };
            call_record.note_response(&result);
            (
                Status::Success,
                String::new(),
                Piece::Whole(AnswerMember::Result, Splice::from(result)),
            )
        }
        Err(text) => {
            let refusal = Refusal { kind: RefusalKind::Unreadable, text: text.to_string() };
            call_record.refused(refusal.kind);
            (Status::Rejected, refusal.text.clone(), Piece::Refused(refusal))
        }
    };
    call_record.close(status, &error).await;
    reply.put(piece);
    Ok(())
}

/// Records a call that cannot be read or names no tool of ours, and refuses it. `tool` is what it
/// named, empty if that is not known.
///
/// # Errors
///
/// None; the type is that of every call.
pub async fn unreadable(
    worker: Rc<Worker>,
    caller: Caller,
    tool: String,
    refusal: Refusal,
    reply: Reply,
) -> Result<(), Aborted> {
    let refusal = match CallRecord::open(&worker, Type::ToolCall, &caller, "", &reply).await {
        Ok(mut call_record) => {
            call_record.name("", &tool);
            call_record.refused(refusal.kind);
            call_record.close(Status::Rejected, &refusal.text).await;
            refusal
        }
        Err(unavailable) => unavailable,
    };
    reply.put(Piece::Refused(refusal));
    Ok(())
}

/// Reads the arguments, finds the tool, asks the gate.
async fn prepare(
    worker: &Worker,
    call_record: &mut CallRecord,
    variant: Operation,
    Given { arguments, intent }: &Given,
) -> Result<(Permit, Bytes), Rejection> {
    let proxy = &worker.proxy;
    let read = CallArguments::parse(
        arguments,
        intent.as_deref().map(RawValue::get),
        worker.scratch.borrow_mut().tape(),
    );
    let read = read.map_err(|error| {
        call_record.keep(Raw::Arguments, arguments);
        Rejection::new(Status::Rejected, RefusalKind::Unreadable, error.to_string())
    })?;
    let (server, tool) = ToolName::split(&read.name).unwrap_or_default();
    call_record.name(server, tool);
    call_record.keep(Raw::Arguments, &read.arguments);
    call_record.operation(read.intent.operation());
    if let Some(stated) = read.intent.record() {
        call_record.keep(Raw::Intent, stated.as_bytes());
    }
    // The words before the tool: a bad intent is told even about a tool that does not exist.
    read.intent
        .check(variant, &proxy.intent)
        .map_err(|error| call_record.deny(&Denial::Intent(error)))?;
    call_record.operation(Some(variant));
    let known = proxy.catalog.load().named(server, tool).cloned();
    let tool = match known {
        Some(tool) => tool,
        None => find(worker, &read.tool(), call_record.began()).await?,
    };
    let permit = intent::authorize(variant, &read.intent, tool, &proxy.intent)
        .map_err(|denial| call_record.deny(&denial))?;
    note_warnings(call_record, &permit);
    Ok((permit, read.arguments))
}

/// Logs and records what is remarkable about a call that goes out (ACT-1).
pub(super) fn note_warnings(call_record: &mut CallRecord, permit: &Permit) {
    let name = &permit.tool().name;
    for warning in permit.warnings() {
        tracing::warn!(server = %name.server, tool = %name.tool, "{warning}");
        let policy = match warning {
            Warning::Mismatch(_) | Warning::WriteOnReadOnly { .. } => Policy::Intent,
            Warning::ApprovalSuggested(_) => Policy::Capability,
        };
        call_record.decide(Decision::new(Verdict::Warning, policy, warning.to_string()));
    }
}

/// The tool of that name, waiting for its server's first set, and for a server that is away: it may
/// come back with tools that nobody has seen. All that counts as time of the call that `began` then.
pub(super) async fn find(
    worker: &Worker,
    name: &ToolName,
    began: Instant,
) -> Result<Arc<Tool>, Rejection> {
    let proxy = &worker.proxy;
    let unknown = |text: String| Rejection::new(Status::Error, RefusalKind::Unknown, text);
    if let Some(tool) = proxy.catalog.load().tool(name) {
        return Ok(Arc::clone(tool));
    }
    let Some(upstream) = proxy.upstreams.get(&name.server) else {
        return Err(unknown(format!(
            "Server '{}' not found. Use retrieve_tools to find tools as server:tool.",
            name.server
        )));
    };
    let until = began + upstream.call_timeout();
    let finding = async {
        // After a start the server's first set of tools may still be on its way.
        let arrived = tokio::select! {
            biased;
            arrived = proxy.catalog.wait_for(name, until.min(began + CATALOG_WAIT)) => arrived,
            () = upstream.settled() => proxy.catalog.load().tool(name).cloned(),
        };
        if let Some(tool) = arrived {
            return Ok(tool);
        }
        let away = |reason| Rejection::new(Status::Error, RefusalKind::Upstream, reason);
        upstream.discovered(until).await.map_err(away)?;
        let found = proxy.catalog.load().tool(name).cloned();
        found.ok_or_else(|| {
            unknown(format!("Tool '{name}' not found. Use retrieve_tools to find tools."))
        })
    };
    let found = worker.ending.unless_cut(finding).await;
    found.unwrap_or_else(|| {
        Err(Rejection::cut_off(&name.server, &name.tool, RefusalKind::Unavailable))
    })
}

/// Waits for the tool's output schema where answers are judged by it: nothing that should be
/// judged goes out before it can be.
async fn compiled(worker: &Worker, tool: &Tool, until: Instant) -> Result<(), Rejection> {
    let judged = tool.policy.mode != Mode::Off;
    if !judged || !matches!(tool.schema.now(), OutputSchema::Compiling(_)) {
        return Ok(());
    }
    let asked = Instant::now();
    if worker.proxy.catalog.compiled(tool, until.min(asked + compiling::LIMIT)).await {
        return Ok(());
    }
    let text = format!(
        "Tool '{}' cannot be called yet: its output schema is still being compiled, after a wait of {} ms",
        tool.name,
        asked.elapsed().as_millis()
    );
    Err(Rejection::new(Status::Error, RefusalKind::Upstream, text))
}

async fn send(
    worker: &Worker,
    call_record: &mut CallRecord,
    user: Option<&Arc<Client>>,
    permit: Permit,
    arguments: Bytes,
    beside: CallExtras,
) -> Result<(Permit, Answer), Rejection> {
    let server = &permit.tool().name.server;
    let Some(upstream) = worker.proxy.upstreams.get(server) else {
        let text = format!("Server '{server}' not found");
        return Err(Rejection::new(Status::Error, RefusalKind::Unknown, text));
    };
    let began = call_record.began();
    let cut = || Rejection::cut_off(server, &permit.tool().name.tool, RefusalKind::Unavailable);
    let compiled = compiled(worker, permit.tool(), began + upstream.call_timeout());
    worker.ending.unless_cut(compiled).await.ok_or_else(cut)??;
    call_record.begin(&permit.tool().name).await?;
    let now = clock::now();
    call_record.sends(upstream, now);
    if let Some(user) = user {
        worker.proxy.log_routing.enter(upstream, user, now);
    }
    let answer = upstream.call(&worker.pool, &permit, arguments, beside, began);
    match worker.ending.unless_cut(answer).await {
        None => Err(cut()),
        Some(Ok(answer)) => Ok((permit, answer)),
        Some(Err(error)) => {
            let now = clock::now();
            call_record.answered = Some(now);
            if let Some(user) = user {
                user.was_active(now);
            }
            Err(Rejection::upstream(&error))
        }
    }
}
