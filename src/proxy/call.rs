//! Calls by the call tools: from the arguments to what was permitted, and out.
//!
//! Reads like the list in `lib.rs`. Deliberately ignorant of HTTP and stdio: a face takes the pieces of the reply and
//! dresses them. Record and reply are `recorded`'s.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::advice;
use super::call_trace::CallTrace;
use super::caller::Caller;
use super::record_kind::RecordKind;
pub use super::recorded::rejected;
use super::recorded::{OnRecord, ReplySource, recorded};
use super::refusal::{FIND_TOOLS, Refusal, RefusalKind};
use super::rejection::{Rejection, Stopped};
use super::render::{self, Caching};
use super::reply::{Aborted, Reply};
use super::retrieve::{self, MAX_RULED, RETRIEVE_TOOLS, WantedTools};
use super::worker::Worker;
use crate::activity::record::{Raw, Status};
use crate::catalog::compiling;
use crate::intent::{ArgumentError, CallArguments, Operation};
use crate::mcp::revisions::Era;
use crate::output::Mode;
use crate::policy::{self, Access, Denial, Permit, ToolAccess};
use crate::tool::{OutputSchema, Tool, ToolName, Trust};
use crate::upstream::CallExtras;

/// How long a call waits for a server's first set of tools after a start, within its time.
const CATALOG_WAIT: Duration = Duration::from_secs(30);

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
pub fn call(
    worker: Rc<Worker>,
    caller: Caller,
    variant: Operation,
    given: Given,
    mut beside: CallExtras,
    reply: Reply,
) -> impl Future<Output = Result<(), Aborted>> {
    let kind = RecordKind::ToolCall(variant.variant());
    let trace = CallTrace::begin(&worker, &caller, kind.method(), || beside.meta.as_deref());
    recorded(worker, caller, (kind, trace), reply, async move |mut on: OnRecord<'_>| {
        let (permit, arguments) = prepare(&mut on, variant, &given, &mut beside).await?;
        Ok(send(on, permit, arguments, beside).await?)
    })
}

/// Answers `retrieve_tools` (FR-021..024), given its `raw` arguments and the request's `_meta`.
///
/// # Errors
///
/// None; the type is that of every call.
pub fn retrieve_tools(
    worker: Rc<Worker>,
    caller: Caller,
    raw: Bytes,
    meta: Option<&[u8]>,
    reply: Reply,
) -> impl Future<Output = Result<(), Aborted>> + use<> {
    let kind = RecordKind::OwnTool;
    let trace = CallTrace::begin(&worker, &caller, kind.method(), || meta);
    recorded(worker, caller, (kind, trace), reply, async move |on: OnRecord<'_>| {
        let OnRecord { worker, caller, record, .. } = on;
        record.name("", RETRIEVE_TOOLS);
        record.keep(Raw::Arguments, &raw);
        let proxy = &worker.proxy;
        proxy.upstreams.nudge();
        let settings = worker.settings();
        let wanted = WantedTools::parse(&raw, settings.tools_limit);
        let wanted = wanted.map_err(|error| Rejection::of_parameters(error.to_string()))?;
        let meaning = proxy.meaning.meaning(wanted.query()).await;
        let visible = policy::visible(&caller.principal, &settings.policy);
        let result = retrieve::retrieve(&wanted, &proxy.catalog.load(), meaning.as_ref(), visible);
        let result = match caller.era() {
            Era::Legacy => result,
            Era::Modern => {
                let result = String::from_utf8_lossy(&result);
                render::own_result(Era::Modern, &result, Caching::No).into_owned().into()
            }
        };
        record.note_response(&result);
        Ok(ReplySource::Own(result))
    })
}

fn unreadable(text: String) -> Rejection {
    Rejection::new(Status::Rejected, RefusalKind::Unreadable, text)
}

/// Reads the arguments, finds the tool, asks whether it may be called.
async fn prepare(
    on: &mut OnRecord<'_>,
    variant: Operation,
    Given { arguments, intent }: &Given,
    beside: &mut CallExtras,
) -> Result<(Permit, Bytes), Stopped> {
    let (worker, proxy) = (on.worker, &on.worker.proxy);
    let read = CallArguments::parse(
        arguments,
        intent.as_deref().map(RawValue::get),
        worker.scratch.borrow_mut().tape(),
    );
    let read = match read {
        Ok(read) => read,
        Err(error) => {
            on.record.keep(Raw::Arguments, arguments);
            return Err(misread(on, variant, arguments, &error).into());
        }
    };
    let (server, tool) = ToolName::split(&read.name).unwrap_or_default();
    on.record.name(server, tool);
    on.record.keep(Raw::Arguments, &read.arguments);
    on.record.operation(read.intent.operation());
    if let Some(stated) = read.intent.record() {
        on.record.keep(Raw::Intent, stated.as_bytes());
    }
    let settings = on.settings.clone();
    // The intent before the tool: a bad intent is reported even where the tool does not exist.
    let intent = match read.intent.check(variant, &settings.policy.intent) {
        Ok(intent) => intent,
        Err(error) => {
            let rejection = on.record.deny(&Denial::Intent(error));
            return Err(rejection.helping(mended(on, variant, &read)).into());
        }
    };
    on.record.operation(Some(variant));
    let known = proxy.catalog.load().named(server, tool).cloned();
    let tool = match known {
        Some(tool) => tool,
        None => {
            let found = find(on, &read.tool()).await;
            found.map_err(|stop| nearest(on, &read.name, stop))?
        }
    };
    let access = Access::Tool(ToolAccess::declared(tool, &intent));
    let permit = on.admit(access, &read.arguments, Some(intent), beside).await?;
    Ok((permit, read.arguments))
}

/// What is wrong with the parameters of a call tool, and the call as it was probably meant.
fn misread(
    on: &OnRecord<'_>,
    variant: Operation,
    arguments: &Bytes,
    error: &ArgumentError,
) -> Rejection {
    if error.is_malformed() {
        return unreadable(error.to_string());
    }
    let rejection = Rejection::of_parameters(error.to_string());
    match CallArguments::guessed(arguments) {
        None => rejection,
        Some(meant) if ToolName::split(&meant.name).is_none() => {
            nearest(on, &meant.name, rejection)
        }
        Some(meant) => rejection.helping(mended(on, variant, &meant)),
    }
}

/// The call with an intent that is right: by the variant that its tool is meant for, where the caller is shown that.
fn mended(on: &OnRecord<'_>, variant: Operation, read: &CallArguments<'_>) -> String {
    let snapshot = on.worker.proxy.catalog.load();
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    let tool = snapshot.tool(&read.tool());
    let shown = tool.filter(|tool| tool.trust == Trust::Given && visible.tool(tool));
    let operation = shown.map_or(variant, |tool| Operation::recommended(tool.capability));
    advice::call_again(operation, &read.name, &read.arguments, &read.intent.mended(operation))
}

/// The same rejection, of an unknown tool with those that the caller may have meant.
pub(super) fn nearest(on: &OnRecord<'_>, name: &str, rejection: Rejection) -> Rejection {
    /// Tools that are compared with the name, the best found first.
    const MAX_TOOLS: usize = 200;
    match rejection.refusal.kind {
        RefusalKind::Unknown | RefusalKind::Parameters => {}
        RefusalKind::Unreadable
        | RefusalKind::Headers
        | RefusalKind::Intent
        | RefusalKind::Gate
        | RefusalKind::Arguments
        | RefusalKind::Limited
        | RefusalKind::Upstream
        | RefusalKind::Failed
        | RefusalKind::Unavailable => return rejection,
    }
    let snapshot = on.worker.proxy.catalog.load();
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    let mut may_see = visible.first_tools(MAX_RULED);
    let mut shown = |tool: &Arc<Tool>| tool.trust == Trust::Given && may_see(tool);
    let (server, words) = ToolName::split(name).unwrap_or(("", name));
    let words: String = words.chars().take(retrieve::MAX_QUERY_BYTES / 4).collect();
    let found = snapshot.search_for(&words, MAX_TOOLS, None, &mut shown).tools;
    // Those of its server, and what few tools there are, whatever they are called.
    let others = snapshot.tools_of(server).iter().chain(snapshot.tools());
    let others = others.filter(|tool| shown(tool)).take(MAX_TOOLS);
    let mut tools: Vec<&Tool> = Vec::new();
    for tool in found.iter().map(|(tool, _)| tool).chain(others) {
        if !tools.iter().any(|known| std::ptr::eq(*known, &**tool)) {
            tools.push(tool);
        }
    }
    rejection.helping(advice::nearest_tools(name, &tools))
}

/// The tool of that name, waiting for its server's first set, and for a server that is away: it may
/// come back with tools that nobody has seen. All that counts as time of the call. Whether there is such a server, and
/// how it is, is told to no token that is not for it.
pub(super) async fn find(on: &OnRecord<'_>, name: &ToolName) -> Result<Arc<Tool>, Rejection> {
    let (worker, proxy, began) = (on.worker, &on.worker.proxy, on.record.began());
    let unknown = |text: String, advice| Rejection {
        status: Status::Error,
        refusal: Refusal::new(RefusalKind::Unknown, text).advising(advice),
    };
    if let Some(tool) = proxy.catalog.load().tool(name) {
        return Ok(Arc::clone(tool));
    }
    let not_found = || unknown(format!("Tool '{name}' not found"), FIND_TOOLS);
    if !policy::visible(&on.caller.principal, &on.settings.policy).may_name(name) {
        return Err(not_found());
    }
    let Some(upstream) = proxy.upstreams.get(&name.server) else {
        let advice = "Use retrieve_tools to find tools as server:tool.";
        return Err(unknown(format!("Server '{}' not found", name.server), advice));
    };
    let until = began + upstream.call_timeout();
    let finding = pin!(async {
        // After a start the server's first set of tools may still be on its way.
        let arrived = tokio::select! {
            biased;
            arrived = proxy.catalog.wait_for(name, until.min(began + CATALOG_WAIT)) => arrived,
            () = upstream.settled() => proxy.catalog.load().tool(name).cloned(),
        };
        if let Some(tool) = arrived {
            return Ok(tool);
        }
        let away = |reason| {
            let help = advice::away(&upstream.state(), SystemTime::now());
            Rejection::new(Status::Error, RefusalKind::Upstream, reason).helping(help)
        };
        upstream.discovered(until).await.map_err(away)?;
        let found = proxy.catalog.load().tool(name).cloned();
        found.ok_or_else(not_found)
    });
    let found = worker.ending.unless_cut(finding).await;
    found.unwrap_or_else(|| Err(Rejection::cut_off(&name.server, &name.tool)))
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

/// Sends a call that was permitted, once its answer can be judged and the log has its mark.
pub(super) async fn send(
    on: OnRecord<'_>,
    permit: Permit,
    arguments: Bytes,
    beside: CallExtras,
) -> Result<ReplySource, Rejection> {
    let access = permit.access();
    let server = access.server();
    let Some(upstream) = on.worker.proxy.upstreams.get(server) else {
        return Err(Rejection::no_server(server));
    };
    if let Some(tool) = access.tool() {
        let until = on.record.began() + upstream.call_timeout();
        let compiled = on.worker.ending.unless_cut(pin!(compiled(on.worker, tool, until))).await;
        compiled.ok_or_else(|| Rejection::cut_off(server, access.label()))??;
        on.record.begin(&tool.name).await?;
    }
    on.send(&upstream, permit, arguments, beside).await
}
