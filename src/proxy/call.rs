//! One call of an upstream's tool, from its arguments to its record.
//!
//! [`call`] reads like the list in `lib.rs`. Every outcome leaves by `Exit`, which writes the
//! record even if the client goes away in the middle (ACT-1). Deliberately ignorant of HTTP and
//! stdio: a face takes the pieces of the reply and dresses them.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::activity::record::{
    self, Decision, Draft, Entry, Payload, Policy, Source, Status, Type,
};
use crate::activity::{Durability, Slot};
use crate::intent::{self, CallArguments, Denial, DenialKind, Operation, Permit};
use crate::output::{Failure, Fault, Finding, Inspector, Member, Message, Mode, Treatment};
use crate::proxy::Worker;
use crate::proxy::reply::{Aborted, Piece, Refusal, RefusalKind, Reply};
use crate::proxy::{dispatch, held, retrieve};
use crate::schema::compile::Schema;
use crate::schema::judge::{Judgement, Scratch, Verdict};
use crate::tool::{OutputSchema, Tool, ToolName};
use crate::upstream::{Answer, CallError, Part};
use crate::wire::splice::Splice;

/// Bytes gathered before a streamed answer goes on although more is at hand.
const MAX_GATHERED_BYTES: usize = 256 * 1024;
/// Documents above this are judged off the worker's thread.
const LARGE_DOCUMENT_BYTES: usize = 256 * 1024;
/// How long a call waits for a server's first set of tools after a start.
const CATALOG_WAIT: Duration = Duration::from_secs(30);

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The door they came in by.
    pub source: Source,
    /// The MCP session, or empty.
    pub session_id: Arc<str>,
    /// The client's own name, or empty.
    pub client_name: Arc<str>,
    /// The request's id.
    pub request_id: Box<str>,
}

/// Calls the tool that `raw`, the arguments of a call tool, names.
///
/// # Errors
///
/// [`Aborted`] when the answer broke off after its first byte had gone on.
pub async fn call(
    worker: Rc<Worker>,
    caller: Caller,
    variant: Operation,
    raw: Bytes,
    reply: Reply,
) -> Result<(), Aborted> {
    let mut exit = match Exit::open(&worker, Type::ToolCall, caller, variant.variant()).await {
        Ok(exit) => exit,
        Err(refusal) => {
            reply.put(Piece::Refused(refusal));
            return Ok(());
        }
    };
    let sent = match prepare(&worker, &mut exit, variant, &raw).await {
        Ok((permit, arguments)) => send(&worker, &mut exit, permit, arguments).await,
        Err(stop) => Err(stop),
    };
    match sent {
        Ok((permit, answer)) => Exchange::new(worker, permit, answer, exit, reply).run().await,
        Err(stop) => {
            exit.close(stop.status, &stop.refusal.text).await;
            reply.put(Piece::Refused(stop.refusal));
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
    let mut exit = match Exit::open(&worker, Type::InternalToolCall, caller, "").await {
        Ok(exit) => exit,
        Err(refusal) => {
            reply.put(Piece::Refused(refusal));
            return Ok(());
        }
    };
    exit.draft.tool = Arc::from("retrieve_tools");
    exit.draft.arguments = Payload::cut(&raw, worker.proxy.max_payload_bytes);
    let found = retrieve::retrieve(&raw, &worker.proxy.catalog.load(), worker.proxy.tools_limit);
    let (status, error, piece) = match found {
        Ok(result) => {
            exit.note_response(&result);
            (Status::Success, String::new(), Piece::Whole(Member::Result, Splice::from(result)))
        }
        Err(text) => {
            let refusal = Refusal { kind: RefusalKind::Unreadable, text: text.to_string() };
            (Status::Rejected, refusal.text.clone(), Piece::Refused(refusal))
        }
    };
    exit.close(status, &error).await;
    reply.put(piece);
    Ok(())
}

/// Records a call whose request could not be read, and refuses it.
///
/// # Errors
///
/// None; the type is that of every call.
pub async fn unreadable(
    worker: Rc<Worker>,
    caller: Caller,
    text: String,
    reply: Reply,
) -> Result<(), Aborted> {
    let refusal = match Exit::open(&worker, Type::ToolCall, caller, "").await {
        Ok(mut exit) => {
            exit.close(Status::Rejected, &text).await;
            Refusal { kind: RefusalKind::Unreadable, text }
        }
        Err(refusal) => refusal,
    };
    reply.put(Piece::Refused(refusal));
    Ok(())
}

/// Why a call ends before an upstream has answered.
struct Stop {
    status: Status,
    refusal: Refusal,
}

impl Stop {
    fn new(status: Status, kind: RefusalKind, text: String) -> Self {
        Self { status, refusal: Refusal { kind, text } }
    }

    fn upstream(error: &CallError) -> Self {
        Self::new(Status::Error, RefusalKind::Upstream, error.to_string())
    }
}

/// Reads the arguments, finds the tool, asks the gate.
async fn prepare(
    worker: &Worker,
    exit: &mut Exit,
    variant: Operation,
    raw: &Bytes,
) -> Result<(Permit, Bytes), Stop> {
    let proxy = &worker.proxy;
    let read = CallArguments::parse(raw, worker.scratch.borrow_mut().tape());
    let read = read.map_err(|error| {
        exit.draft.arguments = Payload::cut(raw, proxy.max_payload_bytes);
        Stop::new(Status::Rejected, RefusalKind::Unreadable, error.to_string())
    })?;
    exit.draft.server = Arc::clone(&read.tool.server);
    exit.draft.tool = Arc::clone(&read.tool.tool);
    exit.draft.arguments = Payload::cut(&read.arguments, proxy.max_payload_bytes);
    exit.draft.operation = read.intent.operation().map(recorded);
    if let Some(stated) = read.intent.record() {
        exit.draft.intent = Payload::cut(stated.get().as_bytes(), proxy.max_payload_bytes);
    }
    // The words before the tool: a bad intent is told even about a tool that does not exist.
    read.intent.check(variant, &proxy.intent).map_err(|error| exit.deny(&Denial::Intent(error)))?;
    exit.draft.operation = Some(recorded(variant));
    let tool = find(worker, &read.tool).await?;
    let permit = intent::authorize(variant, &read.intent, tool, &proxy.intent)
        .map_err(|denial| exit.deny(&denial))?;
    for warning in permit.warnings() {
        tracing::warn!(server = %read.tool.server, tool = %read.tool.tool, "{warning}");
        let text = warning.to_string();
        exit.decisions.push(Decision::new(
            record::Verdict::Warning,
            policy(warning.policy()),
            text,
        ));
    }
    Ok((permit, read.arguments))
}

async fn find(worker: &Worker, name: &ToolName) -> Result<Arc<Tool>, Stop> {
    let proxy = &worker.proxy;
    let unknown = |text: String| Stop::new(Status::Error, RefusalKind::Unknown, text);
    if let Some(tool) = proxy.catalog.load().tool(name) {
        return Ok(Arc::clone(tool));
    }
    let Some(upstream) = proxy.upstreams.get(&name.server) else {
        return Err(unknown(format!(
            "Server '{}' not found. Use retrieve_tools to find tools as server:tool.",
            name.server
        )));
    };
    // After a start the server's first set of tools may still be on its way.
    if let Some(tool) = proxy.catalog.wait_for(name, Instant::now() + CATALOG_WAIT).await {
        return Ok(tool);
    }
    let text = match upstream.unavailable() {
        Some(reason) => return Err(Stop::new(Status::Error, RefusalKind::Upstream, reason)),
        None => format!("Tool '{name}' not found. Use retrieve_tools to find tools."),
    };
    Err(unknown(text))
}

async fn send(
    worker: &Worker,
    exit: &mut Exit,
    permit: Permit,
    arguments: Bytes,
) -> Result<(Permit, Answer), Stop> {
    let server = &permit.tool().name.server;
    let Some(upstream) = worker.proxy.upstreams.get(server) else {
        let text = format!("Server '{server}' not found");
        return Err(Stop::new(Status::Error, RefusalKind::Unknown, text));
    };
    exit.sent = Some(Instant::now());
    let answer = upstream.call(&worker.pool, &permit, arguments).await;
    match answer {
        Ok(answer) => Ok((permit, answer)),
        Err(error) => {
            exit.answered = Some(Instant::now());
            Err(Stop::upstream(&error))
        }
    }
}

/// An answer on its way from an upstream to a reply.
struct Exchange {
    worker: Rc<Worker>,
    permit: Permit,
    /// `None` once the answer is whole, or strict has closed it.
    answer: Option<Answer>,
    inspector: Inspector,
    treatment: Treatment,
    exit: Exit,
    reply: Reply,
    /// Slices of the answer that have not gone on: held by strict, or gathered for one write.
    waiting: Splice,
    /// True once a byte of the answer has gone on.
    begun: bool,
}

/// How an answer ends early.
enum Broken {
    /// The upstream is to blame.
    Upstream(String),
    /// Strict refuses it.
    Blocked(Failure),
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self::Upstream(fault.to_string())
    }
}

impl From<CallError> for Broken {
    fn from(error: CallError) -> Self {
        Self::Upstream(error.cause.to_string())
    }
}

/// Asks a future once, and drops it.
async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

impl Exchange {
    fn new(worker: Rc<Worker>, permit: Permit, answer: Answer, exit: Exit, reply: Reply) -> Self {
        let tool = permit.tool();
        let treatment = Treatment::of(tool);
        let id = answer.id().to_string();
        let inspector =
            Inspector::new(treatment, &tool.policy, id.as_bytes(), worker.proxy.hash_key);
        let waiting = Splice::new();
        Self {
            worker,
            permit,
            answer: Some(answer),
            inspector,
            treatment,
            exit,
            reply,
            waiting,
            begun: false,
        }
    }

    async fn run(mut self) -> Result<(), Aborted> {
        let received = self.receive().await;
        self.exit.answered = Some(Instant::now());
        match received {
            Ok(member) => {
                if let Some(answer) = self.answer.take() {
                    answer.finish();
                }
                self.finish(member).await
            }
            Err(Broken::Blocked(failure)) => {
                self.block(&failure).await;
                Ok(())
            }
            Err(Broken::Upstream(cause)) => self.fail(&cause).await,
        }
    }

    /// Takes the answer in, sending on what may go on, until it is whole.
    async fn receive(&mut self) -> Result<Member, Broken> {
        let mut share = self.worker.proxy.held.share();
        loop {
            let part = self.next_part().await?;
            let chunk = match part {
                Some(Part::Data(chunk)) => chunk,
                Some(Part::End) => match self.inspector.end()? {
                    Message::Answer(member) => return Ok(member),
                    Message::Notification(parts) => {
                        self.reply.send(Piece::Notification(joined(parts))).await;
                        continue;
                    }
                    Message::Foreign => {
                        let name = &self.permit.tool().name;
                        tracing::warn!(tool = %name, "an answer to an id nobody asked for");
                        continue;
                    }
                },
                None => {
                    let ended = self.answer.as_ref().map(Answer::without_response);
                    return Err(ended.map_or(Broken::from(Fault::Empty), Broken::from));
                }
            };
            let slice = self.inspector.feed(&chunk)?;
            if slice.is_empty() {
                continue;
            }
            self.exit.note_response(&slice);
            if self.treatment == Treatment::Hold {
                self.hold(&slice, &mut share).await?;
            }
            self.waiting.push(slice);
        }
    }

    /// The upstream's next part. What waits to go on does so while nothing is at hand.
    async fn next_part(&mut self) -> Result<Option<Part>, Broken> {
        if self.treatment != Treatment::Hold && !self.waiting.is_empty() {
            let at_hand = match &mut self.answer {
                Some(answer) => poll_once(answer.next()).await,
                None => return Ok(None),
            };
            if at_hand.is_pending() || self.waiting.len() >= MAX_GATHERED_BYTES {
                self.send_on().await;
            }
            if let Poll::Ready(part) = at_hand {
                return part.map_err(Broken::from);
            }
        }
        match &mut self.answer {
            Some(answer) => answer.next().await.map_err(Broken::from),
            None => Ok(None),
        }
    }

    /// Sends on what waits.
    async fn send_on(&mut self) {
        let Some(member) = self.inspector.member() else { return };
        if !self.begun {
            self.begun = true;
            self.reply.send(Piece::Begin(member)).await;
        }
        self.reply.send(Piece::Data(std::mem::take(&mut self.waiting))).await;
    }

    /// Strict: accounts for a slice that waits, and stops at the first certain breach.
    async fn hold(&mut self, slice: &Bytes, share: &mut held::Share) -> Result<(), Broken> {
        let limit = self.permit.tool().policy.max_held_bytes;
        if (self.waiting.len() + slice.len()) as u64 > limit {
            return Err(Broken::Blocked(Failure::held(limit)));
        }
        if let Some(failure) = self.inspector.breach() {
            return Err(Broken::Blocked(failure));
        }
        let grown = share.grow(slice.len() as u64).await;
        grown.map_err(|full| Broken::Upstream(full.to_string()))
    }

    /// The answer is whole: judge it, send it on, record it, in the order the mode asks for.
    async fn finish(mut self, member: Member) -> Result<(), Aborted> {
        let status = match member {
            Member::Result if self.inspector.is_error() => Status::Error,
            Member::Result => Status::Success,
            Member::Error => Status::Error,
        };
        let judged_later = member == Member::Result && self.treatment == Treatment::ForwardAndJudge;
        if member == Member::Result && self.treatment == Treatment::Hold {
            let verdict = self.verdict().await;
            if let Some(failure) = verdict {
                self.block(&failure).await;
                return Ok(());
            }
        }
        if !judged_later {
            self.exit.close(status, "").await;
            if self.begun {
                self.send_rest().await;
            } else {
                self.reply.put(Piece::Whole(member, self.waiting));
            }
            return Ok(());
        }
        // Warn: the bytes go on first, then the schema is asked (FR-A11). A query that arrives
        // after the reply waits for the record (ACT-5); `before_reply` waits for it here.
        if self.worker.proxy.activity.config().durability == Durability::BeforeReply {
            let verdict = self.verdict().await;
            self.record_warning(verdict);
            self.exit.close(status, "").await;
            if self.begun {
                self.send_rest().await;
            } else {
                self.reply.put(Piece::Whole(member, self.waiting));
            }
            return Ok(());
        }
        self.exit.replied();
        if self.begun {
            self.send_rest().await;
            tokio::task::yield_now().await;
        } else {
            let whole = std::mem::take(&mut self.waiting);
            self.reply.send(Piece::Whole(member, whole)).await;
        }
        let verdict = self.verdict().await;
        self.record_warning(verdict);
        self.exit.close(status, "").await;
        Ok(())
    }

    async fn send_rest(&mut self) {
        if !self.waiting.is_empty() {
            self.send_on().await;
        }
    }

    /// What stands against the whole result, if anything does.
    async fn verdict(&mut self) -> Option<Failure> {
        let tool = self.permit.tool();
        match self.inspector.finding(tool.policy.missing) {
            Finding::Passes => None,
            Finding::Fails(failure) => Some(failure),
            Finding::AskTheSchema => {
                let OutputSchema::Compiled(schema) = &tool.schema else { return None };
                let document = self.inspector.take_document();
                let size: usize = document.iter().map(Bytes::len).sum();
                let judged = if size > LARGE_DOCUMENT_BYTES {
                    self.worker.proxy.judges.judge(Arc::clone(schema), document).await
                } else {
                    Some(schema.judge(&document, &mut self.worker.scratch.borrow_mut()))
                };
                let Some(judgement) = judged else { return Some(Failure::unjudged()) };
                if judgement.disagreement {
                    let hash = schema.hash();
                    tracing::warn!(tool = %tool.name, schema = %hash, "the engines disagree");
                    self.worker.proxy.judges.count_disagreement();
                }
                match judgement.verdict {
                    Verdict::Conforms => None,
                    Verdict::Violates(violation) => Some(Failure::schema(&violation)),
                }
            }
        }
    }

    fn record_warning(&mut self, verdict: Option<Failure>) {
        if let Some(failure) = verdict {
            let name = &self.permit.tool().name;
            let place = &failure.schema_path;
            tracing::warn!(tool = %name, %place, "the answer violates its schema");
            self.exit.decisions.push(decision(record::Verdict::Warning, Mode::Warn, &failure));
        }
    }

    /// Strict refuses: the upstream's answer is closed, the agent is told why.
    async fn block(&mut self, failure: &Failure) {
        let name = self.permit.tool().name.clone();
        tracing::warn!(tool = %name, place = %failure.schema_path, "the answer was blocked");
        drop(self.answer.take());
        let text = failure.agent_text();
        self.exit.decisions.push(decision(record::Verdict::Blocked, Mode::Strict, failure));
        self.exit.close(Status::Blocked, &text).await;
        let result = dispatch::error_result(&text);
        self.reply.put(Piece::Whole(Member::Result, Splice::from(result)));
    }

    /// The upstream failed in the middle of its answer.
    async fn fail(mut self, cause: &str) -> Result<(), Aborted> {
        let name = &self.permit.tool().name;
        let text = format!("{}: {}: {cause}", name.server, name.tool);
        if self.treatment == Treatment::ForwardAndJudge {
            // A guard breach is final even if the rest never came.
            let breach = self.inspector.breach();
            self.record_warning(breach);
        }
        self.exit.close(Status::Error, &text).await;
        if self.begun {
            return Err(Aborted(text));
        }
        self.reply.put(Piece::Refused(Refusal { kind: RefusalKind::Upstream, text }));
        Ok(())
    }
}

/// The operation in the log's terms.
fn recorded(operation: Operation) -> record::Operation {
    match operation {
        Operation::Read => record::Operation::Read,
        Operation::Write => record::Operation::Write,
        Operation::Destructive => record::Operation::Destructive,
    }
}

fn policy(word: &str) -> Policy {
    Policy::parse(word).unwrap_or(Policy::Intent)
}

fn decision(verdict: record::Verdict, mode: Mode, failure: &Failure) -> Decision {
    let mut decision = Decision::new(verdict, Policy::OutputValidation, failure.reason.as_str());
    decision.mode = mode.as_str();
    decision.instance_path = failure.instance_path.as_str().into();
    decision.schema_path = failure.schema_path.as_str().into();
    decision.guard = failure.guard.unwrap_or_default();
    decision
}

fn joined(parts: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(parts) {
        Ok([only]) => only,
        // A notification that came in pieces: small (`MAX_OUTSIDE_BYTES`), and handed on whole.
        Err(parts) => parts.concat().into(),
    }
}

/// The one way out of a call: whatever happens to it, its record is written.
struct Exit {
    slot: Option<Slot>,
    draft: Draft,
    decisions: Vec<Decision>,
    began: Instant,
    sent: Option<Instant>,
    answered: Option<Instant>,
    head: Vec<u8>,
    head_limit: usize,
    response_bytes: u64,
}

impl Exit {
    /// Makes room for the call's record before anything is sent (ACT-2).
    async fn open(
        worker: &Worker,
        kind: Type,
        caller: Caller,
        variant: &'static str,
    ) -> Result<Self, Refusal> {
        let began = Instant::now();
        let slot = worker.proxy.activity.reserve().await.map_err(|refused| Refusal {
            kind: RefusalKind::Unavailable,
            text: refused.to_string(),
        })?;
        let mut draft = Draft::new(kind, caller.source, Status::Error);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        draft.started = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        draft.session_id = caller.session_id;
        draft.client_name = caller.client_name;
        draft.request_id = caller.request_id;
        draft.variant = variant;
        Ok(Self {
            slot: Some(slot),
            draft,
            decisions: Vec::new(),
            began,
            sent: None,
            answered: None,
            head: Vec::new(),
            head_limit: worker.proxy.max_response_bytes,
            response_bytes: 0,
        })
    }

    /// Copies the head of the answer: a record pins no buffer of a result (ACT-2).
    fn note_response(&mut self, slice: &Bytes) {
        self.response_bytes += slice.len() as u64;
        let room = self.head_limit.saturating_sub(self.head.len());
        if room > 0 {
            self.head.extend_from_slice(slice.get(..room).unwrap_or(slice));
        }
    }

    /// Records a refusal by the gate: the call rejected, and one decision (ACT-1).
    fn deny(&mut self, denial: &Denial) -> Stop {
        let text = denial.to_string();
        self.decisions.push(Decision::new(
            record::Verdict::Blocked,
            policy(denial.policy()),
            text.as_str(),
        ));
        let kind = match denial.kind() {
            DenialKind::Intent => RefusalKind::Intent,
            DenialKind::Gate | DenialKind::Approval => RefusalKind::Gate,
        };
        Stop::new(Status::Rejected, kind, text)
    }

    /// The reply is leaving, its record comes a little later: queries wait for it (ACT-5).
    fn replied(&mut self) {
        if let Some(slot) = &mut self.slot {
            slot.replied();
        }
    }

    /// Hands the record over, before the last piece of the reply. Waits for the disk as far as
    /// `activity.durability` asks for it (ACT-3).
    async fn close(&mut self, status: Status, error: &str) {
        let Some(slot) = self.slot.take() else { return };
        slot.clear_to_reply().await;
        let entry = self.entry(status, error);
        if let Some(durable) = slot.submit(entry)
            && let Err(lost) = durable.wait().await
        {
            // The call was sent, so it is answered (ACT-2); health counts what was lost.
            tracing::error!(%lost, "a call's record may be lost");
        }
    }

    fn entry(&mut self, status: Status, error: &str) -> Entry {
        let total = self.began.elapsed();
        let upstream = match (self.sent, self.answered) {
            (Some(sent), Some(answered)) => answered.duration_since(sent),
            (Some(sent), None) => sent.elapsed(),
            (None, _) => Duration::ZERO,
        };
        let mut draft =
            std::mem::replace(&mut self.draft, Draft::new(Type::ToolCall, Source::Mcp, status));
        draft.status = status;
        draft.error = error.into();
        draft.duration_us = micros(total);
        draft.overhead_us = micros(total.saturating_sub(upstream));
        let head = std::mem::take(&mut self.head).into_boxed_slice();
        draft.response = Payload::from_head(head, self.response_bytes);
        Entry { draft, decisions: std::mem::take(&mut self.decisions) }
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let text = "the client went away before the reply was complete";
            // Nobody waits for the answer any more, so nobody waits for the disk either.
            drop(slot.submit(self.entry(Status::Error, text)));
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Threads beside the workers that judge large documents, bounded in number.
#[derive(Debug)]
pub struct Judges {
    runtime: tokio::runtime::Handle,
    seats: Semaphore,
    scratches: Arc<Mutex<Vec<Scratch>>>,
    disagreements: std::sync::atomic::AtomicU64,
}

impl Judges {
    /// At most `seats` documents are judged at once, on `runtime`'s blocking threads.
    #[must_use]
    pub fn new(runtime: tokio::runtime::Handle, seats: usize) -> Self {
        Self {
            runtime,
            seats: Semaphore::new(seats),
            scratches: Arc::default(),
            disagreements: 0.into(),
        }
    }

    /// How often the two engines disagreed since the start.
    #[must_use]
    pub fn disagreements(&self) -> u64 {
        self.disagreements.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn count_disagreement(&self) {
        self.disagreements.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// `None` when the judge itself failed.
    async fn judge(&self, schema: Arc<Schema>, document: Vec<Bytes>) -> Option<Judgement> {
        // The semaphore is never closed, so a seat always comes.
        let _seat = self.seats.acquire().await.ok();
        let scratches = Arc::clone(&self.scratches);
        let judged = self.runtime.spawn_blocking(move || {
            let taken = scratches.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut scratch = taken.unwrap_or_default();
            let judgement = schema.judge(&document, &mut scratch);
            scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
            judgement
        });
        judged.await.ok()
    }
}
