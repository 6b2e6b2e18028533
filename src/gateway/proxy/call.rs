//! Calls through the call tools: parse the arguments, find the tool, ask for admission (which validates the
//! arguments), send the call.
//!
//! This module is independent of HTTP and stdio, which frame the pieces of the reply. `recorded` owns record and
//! reply.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use mcpproxy_activity::record::Raw;
use mcpproxy_catalog::compiling;
use mcpproxy_policy as policy;
use mcpproxy_policy::intent::{ArgumentError, CallArguments, Intent, Operation};
use mcpproxy_policy::tool::{OutputSchema, Tool, ToolName, Trust};
use mcpproxy_policy::{Access, Denial, Permit, ToolAccess};
use mcpproxy_schema::output::Mode;
use mcpproxy_upstream::CallExtras;
use serde_json::value::RawValue;

use super::advice;
use super::advice::nearest_shown_tools;
use super::builtin::retrieve;
use super::builtin::retrieve::{RETRIEVE_TOOLS, RetrieveArguments};
use super::client::Caller;
use super::recorded::{OnRecord, RecordedRequest, ReplySource};
use super::refusal::{RecordKind, Refusal, RefusalKind, Stopped};
use super::reply::Running;
use super::worker::Worker;

pub use super::recorded::rejected;

/// Maximum wait for a server's first tool list at startup, within the call's timeout.
const CATALOG_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct CallToolInput {
    /// One JSON object, already checked for duplicate keys.
    pub arguments: Bytes,
    /// Intent outside the arguments; one inside must agree with it.
    pub intent: Option<Box<RawValue>>,
}

/// Calls the tool named in a call tool's arguments, forwarding the additional members `extras`. Fails with
/// `Aborted` if the answer breaks off after its first byte was sent.
pub fn call(
    worker: &Rc<Worker>,
    caller: Caller,
    variant: Operation,
    given: CallToolInput,
    mut extras: CallExtras,
) -> Running {
    let kind = RecordKind::ToolCall(variant.variant());
    let request = RecordedRequest::begin(worker, caller, kind, || extras.meta.as_deref());
    request.running(async move |mut on: OnRecord<'_>| {
        let (permit, arguments) = prepare(&mut on, variant, &given, &mut extras).await?;
        Ok(send_permitted(on, permit, arguments, extras).await?)
    })
}

/// Serves `retrieve_tools` (FR-021..024) with its `raw` arguments and the request's `_meta`.
pub(crate) fn retrieve_tools(
    worker: &Rc<Worker>,
    caller: Caller,
    raw: Bytes,
    meta: Option<&[u8]>,
) -> Running {
    let work = async move |on: &mut OnRecord<'_>| {
        on.record.keep(Raw::Arguments, &raw);
        let proxy = &on.worker.proxy;
        proxy.upstreams.nudge();
        let settings = on.worker.settings();
        let arguments = RetrieveArguments::parse(&raw, settings.tools_limit);
        let arguments = arguments.map_err(|error| Refusal::of_parameters(error.to_string()))?;
        let meaning = proxy.meaning.meaning(arguments.query()).await;
        let visible = policy::visible(&on.caller.principal, &settings.policy);
        Ok(retrieve::retrieve(&arguments, &proxy.catalog.load(), meaning.as_ref(), visible))
    };
    RecordedRequest::own_tool(worker, caller, RETRIEVE_TOOLS, meta, work)
}

/// Parses the arguments, finds the tool and asks for admission.
async fn prepare(
    on: &mut OnRecord<'_>,
    variant: Operation,
    CallToolInput { arguments, intent }: &CallToolInput,
    extras: &mut CallExtras,
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
            on.record.keep_arguments(arguments);
            return Err(misread(on, variant, arguments, &error).into());
        }
    };
    let (server, tool) = ToolName::split(&read.name).unwrap_or_default();
    on.record.name(server, tool);
    on.record.keep_arguments(&read.arguments);
    on.record.operation(read.intent.operation());
    if let Some(stated) = read.intent.record() {
        on.record.keep(Raw::Intent, stated.as_bytes());
    }
    let settings = on.settings.clone();
    // The intent is checked first: an invalid one is reported even if the tool does not exist.
    let intent = match read.intent.check(variant, &settings.policy.intent) {
        Ok(intent) => intent,
        Err(error) => {
            match proxy.catalog.load().named(server, tool) {
                Some(_) => on.record.found(&proxy.upstreams),
                None => on.record.addressed(&proxy.upstreams),
            }
            let refusal = on.record.deny(&Denial::Intent(error));
            return Err(refusal.helping(corrected_call(on, variant, &read)).into());
        }
    };
    on.record.operation(Some(variant));
    let known = proxy.catalog.load().named(server, tool).cloned();
    let tool = match known {
        Some(tool) => tool,
        None => {
            let name = read.tool();
            match find(on, &name).await {
                Ok(tool) => tool,
                Err(stop) => {
                    let stop = nearest(on, &read.name, stop);
                    return Err(unknown(on, &name, &read.arguments, Some(intent), stop).into());
                }
            }
        }
    };
    let access = Access::Tool(ToolAccess::declared(tool, &intent));
    let mut arguments = read.arguments.clone();
    let permit = on.admit(access, &mut arguments, Some(intent), extras).await?;
    Ok((permit, arguments))
}

/// Refusal of an unknown or unavailable tool; a denial of its name takes precedence.
pub(super) fn unknown(
    on: &mut OnRecord<'_>,
    name: &ToolName,
    arguments: &[u8],
    intent: Option<Intent<'_>>,
    stop: Refusal,
) -> Refusal {
    match stop.kind {
        RefusalKind::Unknown | RefusalKind::Upstream => on.unknown(name, arguments, intent, stop),
        _ => stop,
    }
}

/// Refusal of invalid parameters of a call tool, with a correction of the call.
fn misread(
    on: &OnRecord<'_>,
    variant: Operation,
    arguments: &Bytes,
    error: &ArgumentError,
) -> Refusal {
    if error.is_malformed() {
        return Refusal::unreadable(error.to_string());
    }
    let refusal = Refusal::of_parameters(error.to_string());
    match CallArguments::guess(arguments) {
        None => refusal,
        Some(meant) if ToolName::split(&meant.name).is_none() => nearest(on, &meant.name, refusal),
        Some(meant) => refusal.helping(corrected_call(on, variant, &meant)),
    }
}

/// Example call with a valid intent, through the variant recommended for the tool if the caller can see it.
fn corrected_call(on: &OnRecord<'_>, variant: Operation, read: &CallArguments<'_>) -> String {
    let snapshot = on.worker.proxy.catalog.load();
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    let tool = snapshot.tool(&read.tool());
    let shown = tool.filter(|tool| tool.trust == Trust::Given && visible.tool(tool));
    let operation = shown.map_or(variant, |tool| Operation::recommended(tool.capability));
    advice::call_again(operation, &read.name, &read.arguments, &read.intent.corrected(operation))
}

/// Adds the nearest visible tools to the refusal of an unknown one.
pub(super) fn nearest(on: &OnRecord<'_>, name: &str, refusal: Refusal) -> Refusal {
    if !matches!(refusal.kind, RefusalKind::Unknown | RefusalKind::Parameters) {
        return refusal;
    }
    refusal.helping(nearest_shown_tools(on.worker, on.caller, &on.settings, name))
}

/// Finds a tool. Waits for its server's first tool list, and for an unavailable server, which may return with new
/// tools; the wait counts as call time. Servers outside a token's scope are not revealed.
pub(super) async fn find(on: &OnRecord<'_>, name: &ToolName) -> Result<Arc<Tool>, Refusal> {
    let (worker, proxy, began) = (on.worker, &on.worker.proxy, on.record.began());
    if let Some(tool) = proxy.catalog.load().tool(name) {
        return Ok(Arc::clone(tool));
    }
    let not_found = || Refusal::no_tool(name);
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    if !visible.may_name(name) {
        return Err(not_found());
    }
    let Some(upstream) = proxy.upstreams.get(&name.server) else {
        // A restricted caller must not learn which servers exist.
        if !visible.is_all() {
            return Err(not_found());
        }
        let advice = "Use retrieve_tools to find tools as server:tool.";
        let text = format!("Server '{}' not found", name.server);
        let refusal = Refusal::failed(RefusalKind::Unknown, text).advising(advice);
        return Err(refusal);
    };
    let until = began + upstream.call_timeout();
    let finding = pin!(async {
        // At startup the server's first tool list may still be pending.
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
            Refusal::failed(RefusalKind::Upstream, reason).helping(help)
        };
        upstream.discovered(until).await.map_err(|reason| {
            // The reason may contain text of the server, so the facts are raised.
            on.raise_facts(proxy.catalog.exposure_of_offers(&name.server));
            away(reason)
        })?;
        let found = proxy.catalog.load().tool(name).cloned();
        found.ok_or_else(not_found)
    });
    let found = worker.ending.unless_cut(finding).await;
    found.unwrap_or_else(|| Err(Refusal::cut_off(&name.server, &name.tool)))
}

/// Sends a permitted call once its answer can be validated and the log has its marker.
#[expect(clippy::manual_async_fn, reason = "an async fn would keep each argument twice")]
pub(super) fn send_permitted(
    on: OnRecord<'_>,
    permit: Permit,
    arguments: Bytes,
    extras: CallExtras,
) -> impl Future<Output = Result<ReplySource, Refusal>> {
    async move {
        if let Some(tool) = permit.access().tool() {
            schema_compiled(on.worker, tool, on.record.began()).await?;
            on.record.begin(&tool.name).await?;
        }
        on.send_recorded(permit, arguments, extras).await
    }
}

/// Compiles the tool's output schema if answers are validated, within the call's timeout, so that no call is sent
/// whose answer cannot be validated.
pub(super) async fn schema_compiled(
    worker: &Worker,
    tool: &Tool,
    began: Instant,
) -> Result<(), Refusal> {
    let is_judged = tool.policy.mode != Mode::Off;
    if !is_judged || !matches!(tool.schema.now(), OutputSchema::Compiling(_)) {
        return Ok(());
    }
    let ToolName { server, tool: own } = &tool.name;
    let Some(upstream) = worker.proxy.upstreams.get(server) else {
        return Err(Refusal::no_server(server));
    };
    let asked = Instant::now();
    let until = (began + upstream.call_timeout()).min(asked + compiling::LIMIT);
    let compiled = worker.ending.unless_cut(pin!(worker.proxy.catalog.compiled(tool, until))).await;
    if compiled.ok_or_else(|| Refusal::cut_off(server, own))? {
        return Ok(());
    }
    let text = format!(
        "Tool '{}' cannot be called yet: its output schema is still being compiled, after a wait of {} ms",
        tool.name,
        asked.elapsed().as_millis()
    );
    Err(Refusal::failed(RefusalKind::Upstream, text))
}
