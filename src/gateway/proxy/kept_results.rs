//! Long results (config `result_limit`): held while they arrive, stored on disk, and replaced by an outline.
//!
//! Only results at `/mcp` are kept, since `read_result` is offered there. At `/mcp/all` tools have output schemas,
//! which an outline does not satisfy; clients of REST and the command line can store a result in a file of their own. A
//! result that cannot be kept is forwarded whole with the reason in its record, so that neither a full disk nor full
//! memory loses it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mcpproxy_policy::Permit;
use mcpproxy_policy::intent::Operation;
use mcpproxy_policy::tool::{Exposure, ResultLimit, Tool, ToolName};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use serde_json::json;
use thiserror::Error;

use super::client::Caller;
use super::refusal::RecordKind;
use super::render::Caching;
use super::worker::Worker;
use super::{memory_budget, render};
use crate::results::{
    KeepTerms, KeptResult, NotKept, Outline, ResultHandle, ResultOwner, ResultStore, StoreBounds,
};

/// Name of the tool that reads kept results.
pub(super) const READ_RESULT: &str = "read_result";
/// Member of `metadata` about a kept result.
pub(super) const KEPT: &str = "kept";
/// Member of `metadata` with the reason why a long result was not kept.
pub(super) const NOT_KEPT: &str = "not_kept";

/// Result in progress that may exceed its limit.
pub(super) struct Keeping {
    limit: ResultLimit,
    bounds: StoreBounds,
    owner: ResultOwner,
    family: ProtocolFamily,
    /// Memory for the held slices, unless they are charged elsewhere, and later for the copy that is written.
    share: memory_budget::Share,
    /// The result as received.
    slices: Vec<Bytes>,
    bytes: u64,
}

pub(super) struct KeptReply {
    /// Result that the client receives instead.
    pub(super) short: Bytes,
    /// Raw JSON for the record.
    pub(super) metadata: String,
}

/// Reason why a long result is forwarded whole.
#[derive(Debug, Error)]
pub(super) enum KeepFailure {
    #[error("it is longer than output_validation.max_held_bytes {0}")]
    TooLarge(u64),
    #[error("there is no memory to hold it (output_validation.max_held_total_bytes)")]
    NoMemory,
    #[error("it is not text in UTF-8")]
    NoText,
    #[error("it is not a complete tool result, which the client must receive whole")]
    Unfinished,
    #[error(transparent)]
    NotKept(#[from] NotKept),
    #[error("the system provides no random bytes")]
    NoRandomness,
    #[error("the thread that writes it failed")]
    Failed,
}

/// Owner under which results of this caller are kept.
pub(super) fn owner(caller: &Caller) -> ResultOwner {
    ResultOwner { principal: caller.principal.mark(), session: caller.session_id().into() }
}

/// Finds a kept result of this caller and raises the facts according to its tool's exposure, since those raised by
/// the original answer may have expired.
pub(super) fn find(
    results: &ResultStore,
    handle: &ResultHandle,
    caller: &Caller,
    raise: impl FnOnce(Exposure),
) -> Option<Arc<KeptResult>> {
    let kept = results.find(handle, &owner(caller), Instant::now())?;
    raise(kept.exposure);
    Some(kept)
}

impl Keeping {
    /// Prepares to keep the result of a call, if its tool has a limit and its caller can read the rest.
    pub(super) fn of(
        worker: &Worker,
        caller: &Caller,
        kind: RecordKind,
        permit: &Permit,
    ) -> Option<Box<Self>> {
        let tool = permit.access().tool()?;
        let limit = tool.result_limit?;
        let by_call_tool = match kind {
            RecordKind::Task { at_call_tools, .. } => at_call_tools,
            _ => Operation::of_tool(kind.variant()).is_some(),
        };
        let settings = worker.settings();
        let bounds = settings.kept_results.filter(|_| by_call_tool && caller.client.is_some())?;
        Some(Box::new(Self {
            limit,
            bounds,
            owner: owner(caller),
            family: caller.family(),
            share: settings.held.share(&tool.name.server),
            slices: Vec::new(),
            bytes: 0,
        }))
    }

    /// Adds a slice of the result. If `counted` is set, the slice's bytes are charged elsewhere.
    pub(super) fn take(
        &mut self,
        slice: &Bytes,
        counted: bool,
        max: u64,
    ) -> Result<(), KeepFailure> {
        self.bytes += slice.len() as u64;
        if self.bytes > max {
            return Err(KeepFailure::TooLarge(max));
        }
        let held = if counted { 0 } else { slice.len() };
        // The `Bytes` value of the slice counts as well, since an answer may arrive in very small pieces.
        match self.share.try_grow((held + size_of::<Bytes>()) as u64) {
            true => self.slices.push(slice.clone()),
            false => return Err(KeepFailure::NoMemory),
        }
        Ok(())
    }

    /// Discards the result so far, which was a question of `server` (PRO-37).
    pub(super) fn restart(&mut self, worker: &Worker, server: &str) {
        self.slices.clear();
        self.bytes = 0;
        self.share = worker.settings().held.share(server);
    }

    /// Whether the limit is exceeded.
    pub(super) fn is_outgrown(&self) -> bool {
        self.bytes > self.limit.bytes
    }

    /// Stores the complete result, of which nothing was forwarded yet.
    pub(super) async fn keep(
        mut self,
        worker: &Rc<Worker>,
        tool: &Tool,
    ) -> Result<KeptReply, KeepFailure> {
        if !self.share.try_grow(self.bytes) {
            return Err(KeepFailure::NoMemory);
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| KeepFailure::NoRandomness)?;
        let handle = ResultHandle::new(random).kept_at(worker.proxy.nodes.own_number());
        let Self { limit, bounds, owner, family, share, slices, bytes } = self;
        let server = Arc::clone(&tool.name.server);
        let terms = KeepTerms { owner, server, exposure: tool.exposure, keep: limit.keep };
        let store = Arc::clone(&worker.proxy.results);
        let written = worker.proxy.result_pool.run(move || {
            let whole = slices.concat();
            let text = std::str::from_utf8(&whole).map_err(|_| KeepFailure::NoText)?;
            let outline = Outline::of(text).ok_or(KeepFailure::Unfinished)?;
            store.keep(handle, &slices, terms, bounds, Instant::now())?;
            drop(share);
            Ok::<_, KeepFailure>(outline)
        });
        let outline = written.await.ok_or(KeepFailure::Failed)??;
        let text = notice(&tool.name, bytes, limit, &handle, &outline);
        let content =
            [json!({"type": "text", "text": text}), json!({"type": "text", "text": outline.head})];
        let result = json!({"content": content}).to_string();
        let short = render::own_result(family, &result, Caching::No).into_owned().into();
        let metadata = json!({"id": handle.id().to_string(), "bytes": bytes}).to_string();
        Ok(KeptReply { short, metadata })
    }
}

/// Text that replaces a result, before its head.
fn notice(
    tool: &ToolName,
    bytes: u64,
    limit: ResultLimit,
    handle: &ResultHandle,
    outline: &Outline,
) -> String {
    let keep = jiff::SignedDuration::try_from(limit.keep).unwrap_or_default();
    let structured = match outline.is_structured {
        true => " Its structuredContent is not repeated here: read it at /structuredContent.",
        false => "",
    };
    format!(
        "The result of '{tool}' has {bytes} bytes, more than the {} that are sent at once. It is kept for {keep:#} as \
         {handle}. Read parts of it with {READ_RESULT}: {{\"handle\": \"{handle}\", \"lines\": \"1-100\"}}, \
         \"search\": \"words\" or \"pointer\": one of those below.{structured}\n\n{}\n{} begins:",
        limit.bytes,
        outline.map,
        capitalised(outline.head_of),
    )
}

fn capitalised(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn replacement_text_fits_the_smallest_limit() {
        let tool = ToolName::parse("files:read").unwrap();
        let keep = Duration::from_secs(90 * 60);
        let limit = ResultLimit { bytes: 5000, keep };
        let handle = ResultHandle::new([1; 16]);
        let rows = vec![json!({"a": "x".repeat(400)}); 1000];
        let result = json!({"content": [], "structuredContent": {"rows": rows}}).to_string();
        let outline = Outline::of(&result).unwrap();
        let text = notice(&tool, 70_000, limit, &handle, &outline);
        for words in [
            "'files:read' has 70000 bytes, more than the 5000 ",
            "kept for 1h 30m as kept_01",
            "read_result: {\"handle\": \"kept_01",
            "at /structuredContent.",
            "\n/structuredContent/rows: array of 1000, ",
            "\nIts JSON begins:",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let min = mcpproxy_policy::tool::MIN_LIMIT_BYTES as usize;
        assert!(text.len() + outline.head.len() < min, "{text}");
    }
}
