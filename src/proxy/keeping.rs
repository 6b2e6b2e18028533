//! Results that are too long for an agent (config `result_limit`): held while they arrive, kept on disk, and told of in
//! short.
//!
//! Only at `/mcp` are results kept, since `read_result` is offered there: at `/mcp/all` tools have their output schemas,
//! which an outline does not fit, and REST and the command line have files of their own. What cannot be kept goes on
//! whole, and its record says why: nothing is lost by a full disk or a full memory.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::json;
use thiserror::Error;

use super::caller::Caller;
use super::memory_budget;
use super::record_kind::RecordKind;
use super::render::{self, Caching};
use super::worker::Worker;
use crate::intent::Operation;
use crate::mcp::revisions::Era;
use crate::policy::Permit;
use crate::results::{KeepTerms, NotKept, Outline, ResultHandle, ResultOwner, StoreBounds};
use crate::tool::{ResultLimit, ToolName};

/// The tool that reads what is kept.
pub(super) const READ_RESULT: &str = "read_result";
/// The name among the metadata of a record of what was kept.
pub(super) const KEPT: &str = "kept";
/// The same of why a result that is too long was not.
pub(super) const NOT_KEPT: &str = "not_kept";

/// A result on its way that may turn out too long.
pub(super) struct Keeping {
    limit: ResultLimit,
    bounds: StoreBounds,
    owner: ResultOwner,
    era: Era,
    /// The memory of what is held, unless that is accounted for elsewhere, and later of its copy.
    share: memory_budget::Share,
    /// The result as its server sent it.
    slices: Vec<Bytes>,
    bytes: u64,
}

/// A result that is kept.
pub(super) struct KeptReply {
    /// What its client gets.
    pub(super) short: Bytes,
    /// What its record says, raw JSON.
    pub(super) metadata: String,
}

/// Why a result goes on whole though it is longer than its limit.
#[derive(Debug, Error)]
pub(super) enum GoesOn {
    #[error("it is longer than output_validation.max_held_bytes {0}")]
    TooLarge(u64),
    #[error("there is no memory to hold it (output_validation.max_held_total_bytes)")]
    NoMemory,
    #[error("it is not text in UTF-8")]
    NoText,
    #[error("it is no complete tool result, so that its client has to see it")]
    Unfinished,
    #[error(transparent)]
    NotKept(#[from] NotKept),
    #[error("the system gives no randomness")]
    NoRandomness,
    #[error("the thread that writes it failed")]
    Failed,
}

/// Whose results are whose.
pub(super) fn owner(caller: &Caller) -> ResultOwner {
    ResultOwner { principal: caller.principal.mark(), session: caller.session_id().into() }
}

impl Keeping {
    /// What is needed to keep the result of a call, where its tool has a limit and its caller could read the rest.
    pub(super) fn of(
        worker: &Worker,
        caller: &Caller,
        kind: RecordKind,
        permit: &Permit,
    ) -> Option<Box<Self>> {
        let tool = permit.access().tool()?;
        let limit = tool.result_limit?;
        let by_call_tool = Operation::of_tool(kind.variant()).is_some();
        let settings = worker.settings();
        let bounds = settings.kept_results.filter(|_| by_call_tool && caller.client.is_some())?;
        Some(Box::new(Self {
            limit,
            bounds,
            owner: owner(caller),
            era: caller.era(),
            share: settings.held.share(&tool.name.server),
            slices: Vec::new(),
            bytes: 0,
        }))
    }

    /// Takes in the next slice of the result; of it `counted` are held in any case.
    pub(super) fn take(&mut self, slice: &Bytes, counted: bool, most: u64) -> Result<(), GoesOn> {
        self.bytes += slice.len() as u64;
        if self.bytes > most {
            return Err(GoesOn::TooLarge(most));
        }
        let held = if counted { 0 } else { slice.len() };
        // The handle counts as well: an answer may come in very small pieces.
        match self.share.try_grow((held + size_of::<Bytes>()) as u64) {
            true => self.slices.push(slice.clone()),
            false => return Err(GoesOn::NoMemory),
        }
        Ok(())
    }

    /// Whether so much has come that its client is not to have it whole.
    pub(super) fn is_outgrown(&self) -> bool {
        self.bytes > self.limit.bytes
    }

    /// Keeps the result, of which everything has come and nothing has gone on.
    pub(super) async fn keep(
        mut self,
        worker: &Rc<Worker>,
        tool: &ToolName,
    ) -> Result<KeptReply, GoesOn> {
        if !self.share.try_grow(self.bytes) {
            return Err(GoesOn::NoMemory);
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| GoesOn::NoRandomness)?;
        let handle = ResultHandle::new(random).kept_at(worker.proxy.shared_node_number());
        let Self { limit, bounds, owner, era, share, slices, bytes } = self;
        let terms = KeepTerms { owner, server: Arc::clone(&tool.server), keep: limit.keep };
        let store = Arc::clone(&worker.proxy.results);
        let written = worker.proxy.result_pool.run(move || {
            let whole = slices.concat();
            let text = std::str::from_utf8(&whole).map_err(|_| GoesOn::NoText)?;
            let outline = Outline::of(text).ok_or(GoesOn::Unfinished)?;
            store.keep(handle, &slices, terms, bounds, Instant::now())?;
            drop(share);
            Ok::<_, GoesOn>(outline)
        });
        let outline = written.await.ok_or(GoesOn::Failed)??;
        let told = told(tool, bytes, limit, &handle, &outline);
        let content =
            [json!({"type": "text", "text": told}), json!({"type": "text", "text": outline.head})];
        let result = json!({"content": content}).to_string();
        let short = render::own_result(era, &result, Caching::No).into_owned().into();
        let metadata = json!({"id": handle.id().to_string(), "bytes": bytes}).to_string();
        Ok(KeptReply { short, metadata })
    }
}

/// What an agent is told in the place of a result, before its head.
fn told(
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
        "The result of '{tool}' has {bytes} bytes, more than the {} that go out at once. It is kept for {keep:#} as \
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
    fn an_agent_is_told_how_to_read_on_in_less_than_the_least_limit() {
        let tool = ToolName::parse("files:read").unwrap();
        let keep = Duration::from_secs(90 * 60);
        let limit = ResultLimit { bytes: 5000, keep };
        let handle = ResultHandle::new([1; 16]);
        let rows = vec![json!({"a": "x".repeat(400)}); 1000];
        let result = json!({"content": [], "structuredContent": {"rows": rows}}).to_string();
        let outline = Outline::of(&result).unwrap();
        let told = told(&tool, 70_000, limit, &handle, &outline);
        for words in [
            "'files:read' has 70000 bytes, more than the 5000 ",
            "kept for 1h 30m as kept_01",
            "read_result: {\"handle\": \"kept_01",
            "at /structuredContent.",
            "\n/structuredContent/rows: array of 1000, ",
            "\nIts JSON begins:",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        let least = crate::tool::result_limit::MIN_LIMIT_BYTES as usize;
        assert!(told.len() + outline.head.len() < least, "{told}");
    }
}
