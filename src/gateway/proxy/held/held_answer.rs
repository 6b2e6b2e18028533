//! Answer of a call that outlives the request that sent it (PRO-42).
//!
//! An [`Answer`] belongs to the worker that sent its call, but the client may return on a connection of any other
//! worker. A pump therefore keeps the answer on its worker and passes its parts through a bounded channel to a
//! [`HeldAnswer`], whose owner can change. Dropping the [`HeldAnswer`] cancels the call.
//!
//! ```text
//! worker A:  Answer ── pump ──┐ parts        ┌── commands
//!                             ▼              │
//! worker B:              HeldAnswer: Exchange ─▶ waiting task ─▶ Exchange of the repeated request
//! ```
//!
//! Between owners, [`HeldAnswer::collect`] reads the messages before the answer: requests are kept for the client's
//! return, notifications are dropped, and the answer itself stays in the channel.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mcpproxy_protocol::mcp::jsonrpc::{Code, Envelope};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_upstream::{Answer, AnswerPart, CallError, RepeatableCall};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::bounds::HeldPlace;

/// Capacity of the channel between a pump and its reader, in parts.
const PARTS: usize = 4;
/// Capacity of a pump's command channel.
const COMMANDS: usize = 4;
/// Maximum size of a server's messages to a held call while its client is away, in bytes.
const MAX_STASH_BYTES: usize = 256 * 1024;
/// Maximum number of requests of a server to a held call while its client is away.
const MAX_STASHED: usize = 16;

/// Task that keeps an answer on its worker.
pub(crate) type Pump = Pin<Box<dyn Future<Output = ()>>>;

type Part = Result<Option<AnswerPart>, CallError>;

/// Source of the answer that an exchange forwards.
pub(crate) enum AnswerStream {
    /// Answer of a call sent by this request.
    Direct(Answer),
    Held(Box<HeldAnswer>),
}

impl From<Answer> for AnswerStream {
    fn from(answer: Answer) -> Self {
        Self::Direct(answer)
    }
}

impl AnswerStream {
    /// Takes the call, once, if a modern server answers it and may ask for input.
    pub(crate) fn take_repeatable(&mut self) -> Option<Box<RepeatableCall>> {
        match self {
            Self::Direct(answer) => answer.take_repeatable(),
            // Held calls belong to modern clients, and only legacy clients need this repetition.
            Self::Held(_) => None,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Direct(answer) => answer.id(),
            Self::Held(held) => held.id,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        match self {
            Self::Direct(answer) => answer.generation(),
            Self::Held(held) => held.generation,
        }
    }

    pub(crate) fn family(&self) -> ProtocolFamily {
        match self {
            Self::Direct(answer) => answer.family(),
            Self::Held(_) => ProtocolFamily::Legacy,
        }
    }

    /// Next part. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Part {
        match self {
            Self::Direct(answer) => answer.next().await,
            Self::Held(held) => held.next().await,
        }
    }

    /// Whether no byte of the answer was received.
    pub(crate) fn received_nothing(&self) -> bool {
        match self {
            Self::Direct(answer) => answer.received_nothing(),
            Self::Held(_) => false,
        }
    }

    pub(crate) fn may_have_crashed_server(&self) -> bool {
        match self {
            Self::Direct(answer) => answer.may_have_crashed_server(),
            Self::Held(_) => true,
        }
    }

    /// Restarts the wait for the next message with this limit.
    pub(crate) fn extend_wait(&mut self, limit: Duration) {
        match self {
            Self::Direct(answer) => answer.extend_wait(limit),
            Self::Held(held) => held.extend_wait(limit),
        }
    }

    /// Observes a message that no client receives.
    pub(crate) async fn observe(&self, message: &Bytes) {
        match self {
            Self::Direct(answer) => answer.observe(message),
            Self::Held(held) => held.observe(message).await,
        }
    }

    pub(crate) fn without_response(&self) -> CallError {
        match self {
            Self::Direct(answer) => answer.without_response(),
            Self::Held(held) => held.ended.clone(),
        }
    }

    /// Ends the call after its response.
    pub(crate) fn finish(self) {
        match self {
            Self::Direct(answer) => answer.finish(),
            Self::Held(held) => held.finished.store(true, Ordering::Release),
        }
    }

    /// Excludes the connection from reuse.
    pub(crate) fn distrust(&mut self) {
        match self {
            Self::Direct(answer) => answer.distrust(),
            Self::Held(held) => held.command(Command::Distrust),
        }
    }
}

#[derive(Debug)]
enum Command {
    ExtendWait(Duration),
    Distrust,
    Observe(Bytes),
}

/// Server message that the waiting task must answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) raw_id: Bytes,
    /// The member `result` or `error`.
    pub(crate) outcome: Bytes,
}

/// Answer detached from its request.
#[derive(Debug)]
pub(crate) struct HeldAnswer {
    id: u64,
    generation: u64,
    /// Error of an answer that ends early.
    ended: CallError,
    parts: mpsc::Receiver<Part>,
    commands: mpsc::Sender<Command>,
    /// Whether the response was received; in that case, dropping this value does not cancel the call.
    finished: Arc<AtomicBool>,
    collected: Collected,
    /// Number of rounds so far.
    pub(crate) rounds: u32,
    /// The call's share of the bounds.
    _place: HeldPlace,
}

/// Messages of a server while the client is away.
#[derive(Debug, Default)]
struct Collected {
    /// Parts to be read before the channel.
    stash: VecDeque<Part>,
    /// Parts of an incomplete message.
    message: Vec<Bytes>,
    bytes: usize,
    requests: usize,
    /// Raw id of the open question.
    asked: Bytes,
    /// Whether the server has withdrawn the open question.
    is_withdrawn: bool,
    /// Whether the remaining parts are left in the channel.
    is_full: bool,
}

impl HeldAnswer {
    /// Detaches the answer from its request; `adopt` runs its pump. If that fails, returns `None` and cancels the call.
    pub(crate) fn of(
        answer: Answer,
        place: HeldPlace,
        adopt: impl FnOnce(Pump) -> bool,
    ) -> Option<Box<Self>> {
        let (sender, parts) = mpsc::channel(PARTS);
        let (commands, orders) = mpsc::channel(COMMANDS);
        let finished = Arc::<AtomicBool>::default();
        let (id, generation, ended) = (answer.id(), answer.generation(), answer.without_response());
        let pump = pump(answer, sender, orders, Arc::clone(&finished));
        adopt(Box::pin(pump)).then(|| {
            Box::new(Self {
                id,
                generation,
                ended,
                parts,
                commands,
                finished,
                collected: Collected::default(),
                rounds: 0,
                _place: place,
            })
        })
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    async fn next(&mut self) -> Part {
        if let Some(part) = self.collected.stash.pop_front() {
            return part;
        }
        self.parts.recv().await.unwrap_or_else(|| Err(self.ended.clone()))
    }

    pub(crate) fn extend_wait(&self, limit: Duration) {
        self.command(Command::ExtendWait(limit));
    }

    /// Sends a command; the pump reads commands in every state. A command beyond the channel's capacity is lost.
    fn command(&self, command: Command) {
        let _ = self.commands.try_send(command);
    }

    async fn observe(&self, message: &Bytes) {
        let _ = self.commands.send(Command::Observe(message.clone())).await;
    }

    /// Begins a wait for the answer to the question with this raw id.
    pub(crate) fn waits_for(&mut self, raw_id: &Bytes) {
        let stash = std::mem::take(&mut self.collected.stash);
        // The stash is from an earlier wait and has not been read completely: its end may belong to a message that
        // continues in the channel.
        let is_full = self.collected.is_full && !stash.is_empty();
        self.collected = Collected {
            requests: stash.iter().filter(|part| matches!(part, Ok(Some(AnswerPart::End)))).count(),
            bytes: stash.iter().map(part_len).sum(),
            is_full,
            asked: raw_id.clone(),
            stash,
            ..Collected::default()
        };
    }

    /// Ends the wait: an exchange reads the answer again.
    pub(crate) fn resumes(&mut self) {
        if !self.collected.message.is_empty() {
            self.collected.fill(None);
        }
    }

    /// Whether the answer to the open question is still wanted.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.collected.is_withdrawn
    }

    /// Whether [`Self::collect`] has reached its limits.
    pub(crate) fn is_full(&self) -> bool {
        self.collected.is_full
    }

    /// Reads a part while the client is away; returns a request to refuse, if any. Cancel-safe.
    pub(crate) async fn collect(&mut self) -> Option<Refused> {
        let part = self.parts.recv().await.unwrap_or_else(|| Err(self.ended.clone()));
        match self.collected.take(part) {
            Taken::Kept => None,
            Taken::Refused(refused) => Some(refused),
            Taken::Notification(message) => {
                self.observe(&message).await;
                None
            }
        }
    }
}

fn part_len(part: &Part) -> usize {
    match part {
        Ok(Some(AnswerPart::Data(data))) => data.len() + size_of::<Part>(),
        Ok(Some(AnswerPart::End | AnswerPart::Interrupted) | None) | Err(_) => 0,
    }
}

/// Outcome of taking a part.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Kept,
    Refused(Refused),
    /// Notification that no client receives; it is only observed.
    Notification(Bytes),
}

impl Collected {
    fn take(&mut self, part: Part) -> Taken {
        match part {
            Ok(Some(AnswerPart::Data(data))) => {
                // A part's overhead counts as well, since an answer may arrive byte by byte.
                self.bytes += data.len() + size_of::<Part>();
                self.message.push(data);
                if self.bytes > MAX_STASH_BYTES {
                    // The answer, or messages beyond the limit, stay in the channel until the client returns.
                    self.fill(None);
                }
                Taken::Kept
            }
            Ok(Some(AnswerPart::End)) => self.message(),
            Ok(Some(AnswerPart::Interrupted)) => Taken::Kept,
            ended @ (Ok(None) | Err(_)) => {
                self.fill(Some(ended));
                Taken::Kept
            }
        }
    }

    /// Stashes the parts read so far and leaves the rest in the channel.
    fn fill(&mut self, last: Option<Part>) {
        let message = std::mem::take(&mut self.message).into_iter();
        self.stash.extend(message.map(|data| Ok(Some(AnswerPart::Data(data)))));
        self.stash.extend(last);
        self.is_full = true;
    }

    /// Classifies a complete message.
    fn message(&mut self) -> Taken {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Canceled<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        self.bytes -= self.message.len() * size_of::<Part>();
        let message = Bytes::from(self.message.concat());
        let Ok(Envelope { id, method: Some(method), params }) = serde_json::from_slice(&message)
        else {
            // The answer, or a message that the exchange will refuse.
            self.fill(Some(Ok(Some(AnswerPart::End))));
            return Taken::Kept;
        };
        self.message.clear();
        let respond = |raw: &RawValue, outcome: String| {
            let raw_id = message.slice_ref(raw.get().as_bytes());
            Taken::Refused(Refused { raw_id, outcome: outcome.into() })
        };
        match (&*method, id) {
            ("ping", Some(raw)) => {
                self.bytes -= message.len();
                respond(raw, "\"result\":{}".to_owned())
            }
            (method, Some(raw)) if self.requests >= MAX_STASHED => {
                self.bytes -= message.len();
                let text = format!("{method}: the client has too many requests open");
                let error = json!({"code": Code::Internal as i32, "message": text});
                respond(raw, format!("\"error\":{error}"))
            }
            (_, Some(_)) => {
                self.requests += 1;
                self.stash.push_back(Ok(Some(AnswerPart::Data(message))));
                self.stash.push_back(Ok(Some(AnswerPart::End)));
                Taken::Kept
            }
            (method, None) => {
                self.bytes -= message.len();
                let canceled = params.filter(|_| method == "notifications/cancelled");
                let canceled =
                    canceled.and_then(|raw| serde_json::from_str::<Canceled<'_>>(raw.get()).ok());
                if canceled.is_some_and(|it| it.request_id.get().as_bytes() == self.asked) {
                    self.is_withdrawn = true;
                }
                Taken::Notification(message.clone())
            }
        }
    }
}

/// Forwards the parts of an answer. Ends with the [`HeldAnswer`] or with the answer.
async fn pump(
    mut answer: Answer,
    parts: mpsc::Sender<Part>,
    mut commands: mpsc::Receiver<Command>,
    finished: Arc<AtomicBool>,
) {
    let mut permit = None;
    let mut is_over = false;
    loop {
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(Command::ExtendWait(limit)) => answer.extend_wait(limit),
                Some(Command::Distrust) => answer.distrust(),
                Some(Command::Observe(message)) => answer.observe(&message),
                // The owner of the held answer was dropped.
                None => break,
            },
            reserved = parts.reserve(), if permit.is_none() && !is_over => match reserved {
                Ok(reserved) => permit = Some(reserved),
                Err(_) => break,
            },
            part = answer.next(), if permit.is_some() => {
                is_over = !matches!(part, Ok(Some(_)));
                if let Some(permit) = permit.take() {
                    permit.send(part);
                }
            }
        }
    }
    drop(permit);
    if finished.load(Ordering::Acquire) {
        answer.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Part {
        Ok(Some(AnswerPart::Data(Bytes::copy_from_slice(text.as_bytes()))))
    }

    fn end() -> Part {
        Ok(Some(AnswerPart::End))
    }

    /// Takes a message in two pieces.
    fn take(collected: &mut Collected, message: &str) -> Taken {
        let (first, second) = message.split_at(message.len() / 2);
        assert_eq!(collected.take(data(first)), Taken::Kept);
        assert_eq!(collected.take(data(second)), Taken::Kept);
        collected.take(end())
    }

    #[test]
    fn pro_42_requests_of_a_held_call_wait_and_its_answer_is_not_consumed() {
        let mut collected = Collected { asked: Bytes::from_static(b"7"), ..Collected::default() };
        let request = r#"{"jsonrpc":"2.0","id":8,"method":"roots/list"}"#;
        assert_eq!(take(&mut collected, request), Taken::Kept);
        assert_eq!(collected.stash.len(), 2);
        let progress = r#"{"method":"notifications/progress","params":{"progressToken":1}}"#;
        let dropped = Taken::Notification(Bytes::copy_from_slice(progress.as_bytes()));
        assert_eq!(take(&mut collected, progress), dropped);
        let pong = Refused { raw_id: "9".into(), outcome: "\"result\":{}".into() };
        assert_eq!(take(&mut collected, r#"{"id":9,"method":"ping"}"#), Taken::Refused(pong));
        for (id, is_withdrawn) in [("8", false), ("\"7\"", false), ("7", true)] {
            let canceled =
                format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#);
            assert!(matches!(take(&mut collected, &canceled), Taken::Notification(_)));
            assert_eq!(collected.is_withdrawn, is_withdrawn, "{id}");
        }
        assert_eq!((collected.stash.len(), collected.bytes), (2, request.len()));
        assert!(!collected.is_full);
        assert_eq!(take(&mut collected, r#"{"id":1,"result":{}}"#), Taken::Kept);
        assert!(collected.is_full);
        let kept: Vec<Part> = collected.stash.into();
        assert_eq!(kept.last(), Some(&end()));
        assert_eq!(kept.iter().filter(|part| **part == end()).count(), 2, "{kept:?}");
    }

    #[test]
    fn pro_42_messages_for_a_held_call_are_bounded() {
        let mut collected = Collected::default();
        let request = r#"{"id":8,"method":"roots/list"}"#;
        for _ in 0..MAX_STASHED {
            assert_eq!(take(&mut collected, request), Taken::Kept);
        }
        let Taken::Refused(refused) = take(&mut collected, request) else { panic!("it is kept") };
        assert_eq!(refused.raw_id, "8");
        assert!(refused.outcome.starts_with(b"\"error\":{\"code\":-32603"), "{refused:?}");
        assert_eq!(collected.bytes, MAX_STASHED * request.len());
        let long = "x".repeat(MAX_STASH_BYTES);
        assert_eq!(collected.take(data(&long)), Taken::Kept);
        assert!(collected.is_full, "nothing more is read");
        assert_eq!(collected.stash.back(), Some(&data(&long)));
    }
}
