//! Holding a call whose legacy server asks its modern client for input (PRO-42).
//!
//! The exchange ends with `input_required`. Its pending answer passes to a task of the worker that waits for the
//! client's repeated request.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use mcpproxy_activity::Slot;
use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Status, Text};
use mcpproxy_policy::ServerOutcome;
use mcpproxy_policy::approvals::ApprovalId;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::meta::SERVER_KEY;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::output::AnswerMember;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Exchange, INPUT_REQUIRED, settle};
use crate::proxy::client::ActiveCall;
use crate::proxy::held;
use crate::proxy::held::bounds::{MAX_HELD_QUESTION_BYTES, MAX_HELD_ROUNDS, NotHeld, PreparedHold};
use crate::proxy::held::calls::{
    AskedRequest, ComparedArguments, HELD_CALL, HeldCallEntry, HeldRequest, QUESTION, Taker,
    Withdrawn,
};
use crate::proxy::held::held_answer::{AnswerStream, HeldAnswer};
use crate::proxy::refusal::RefusalKind;
use crate::proxy::relay::HeldQuestion;
use crate::proxy::render;
use crate::proxy::reply::{Aborted, Piece};
use crate::proxy::shutdown::CUT_OFF;
use crate::proxy::worker::Worker;

/// Time by which the wait for the server exceeds the wait for the client, so that the wait for the server does not
/// end first.
const HELD_SLACK: Duration = Duration::from_secs(60);

impl Exchange {
    /// Prepares to hold the call; if it cannot be held, the server gets the reason.
    pub(super) async fn begin_hold(&mut self, question: HeldQuestion) {
        match self.place_to_hold(&question).await {
            Ok(hold) => self.held = Some((question, Box::new(hold))),
            Err(why) => {
                let Some(answer) = &self.answer else { return };
                let server = self.permit.access().server();
                let text = format!("{}: {why}", question.method);
                let error = held::repeats::error(Code::Internal, &text);
                let to = (server, answer.generation());
                held::repeats::respond(&self.worker, to, question.raw_id, error).await;
            }
        }
    }

    async fn place_to_hold(&self, question: &HeldQuestion) -> Result<PreparedHold, NotHeld> {
        if question.request.len() > MAX_HELD_QUESTION_BYTES {
            return Err(NotHeld::TooLong);
        }
        // A response that has begun cannot carry a question.
        if self.begun || !self.waiting.is_empty() || !self.worker.may_defer() {
            return Err(NotHeld::Unavailable);
        }
        let proxy = &self.worker.proxy;
        let principal = self.permit.principal();
        let place = match &self.answer {
            Some(AnswerStream::Held(held)) if held.rounds >= MAX_HELD_ROUNDS => {
                return Err(NotHeld::TooManyRounds);
            }
            Some(AnswerStream::Held(_)) => None,
            Some(AnswerStream::Direct(_)) => Some(proxy.held_calls.bounds.enter(principal)?),
            None => return Err(NotHeld::Unavailable),
        };
        let (id, state) = proxy.approvals.held_state(principal).ok_or(NotHeld::Unavailable)?;
        let slot = proxy.activity.reserve().await.map_err(|_| NotHeld::Unavailable)?;
        Ok(PreparedHold { id, state, place, slot })
    }

    /// Ends the request with the server's question, while the call waits for the client.
    pub(super) async fn hold_for_input(mut self) -> Result<(), Aborted> {
        let worker = Rc::clone(&self.worker);
        let unavailable = RefusalKind::Unavailable;
        let (Some((question, hold)), Some(answer)) = (self.held.take(), self.answer.take()) else {
            return self.fail(CUT_OFF, unavailable).await;
        };
        let PreparedHold { id, state, place, slot } = *hold;
        let HeldQuestion { method, raw_id, request } = question;
        let held = match (answer, place) {
            (AnswerStream::Held(held), _) => Some(held),
            (AnswerStream::Direct(answer), Some(place)) => {
                HeldAnswer::of(answer, place, |pump| worker.adopt(pump))
            }
            (AnswerStream::Direct(_), None) => None,
        };
        let Some(mut held) = held else {
            let text = "the call cannot be held for its client: too many calls are being completed";
            return self.fail(text, unavailable).await;
        };
        let timeout = worker.settings().held_timeout;
        held.rounds += 1;
        held.waits_for(&raw_id);
        held.extend_wait(timeout + HELD_SLACK);
        let (taker, taken) = oneshot::channel();
        let access = self.permit.access();
        let waiting = HeldCallEntry {
            principal: self.permit.principal().clone(),
            request: HeldRequest::of(access),
            arguments: Arc::new(ComparedArguments::of(
                self.holdable.as_deref().unwrap_or_default(),
            )),
            asked: AskedRequest { method, raw_id: raw_id.clone() },
            taker,
        };
        let name = json!(id.as_str()).to_string();
        let kind = self.call_record.kind();
        let mut draft = self.call_record.beside(kind.record_type());
        draft.variant = kind.variant();
        let metadata = format!("{{\"{HELD_CALL}\":{name}}}");
        draft.keep(Raw::Metadata, metadata.as_bytes(), MAX_METADATA_BYTES);
        let mut wait = HeldWait {
            worker: Rc::clone(&worker),
            id: id.clone(),
            server: Arc::clone(access.server()),
            asked: (method, raw_id),
            began: Instant::now(),
            timeout,
            ends: Some((slot, draft)),
            _user: self.relay.active_client(),
        };
        if !worker.proxy.held_calls.wait(id, waiting) {
            drop(wait.claimed());
            return self.fail(CUT_OFF, unavailable).await;
        }
        // The task may run detached, since the number of held calls is bounded.
        drop(worker.keep(worker.ending.clone().attend(wait.run(held, taken))));
        settle(&mut self.permit, Some(ServerOutcome::Answered));
        let result = input_required(&request, &state);
        self.call_record.add_metadata(HELD_CALL, &name);
        self.call_record.add_metadata(INPUT_REQUIRED, "true");
        self.call_record.note_response(&result);
        self.call_record.close(Status::Success, "").await;
        self.reply.put(Piece::Whole(AnswerMember::Result, Splice::from(result)));
        Ok(())
    }
}

/// Result that asks the client: `request` as a modern server would state it.
fn input_required(request: &str, state: &str) -> Bytes {
    let (state, server) = (json!(state), render::server_info());
    let result = format!(
        r#"{{"resultType":"input_required","inputRequests":{{"{QUESTION}":{request}}},"requestState":{state},"_meta":{{"{SERVER_KEY}":{server}}}}}"#
    );
    result.into()
}

/// Wait of a held call for its client; recorded as cut off if dropped before its end.
struct HeldWait {
    worker: Rc<Worker>,
    id: ApprovalId,
    server: Arc<str>,
    /// Method and raw id of the server's request.
    asked: (&'static str, Bytes),
    began: Instant,
    timeout: Duration,
    /// Slot and draft of the record of the wait's end.
    ends: Option<(Slot, Draft)>,
    /// The client, counted as a user of the server while the call is held (PRO-6).
    _user: Option<ActiveCall>,
}

impl HeldWait {
    async fn run(mut self, mut held: Box<HeldAnswer>, taken: oneshot::Receiver<Taker>) {
        let ending = self.worker.ending.clone();
        let waited = ending.unless_cut(pin!(self.wait(&mut held, taken))).await;
        let is_cut = waited.is_none();
        let why = match waited {
            Some(Ok(taker)) => {
                drop(self.claimed());
                // If the claiming request has ended, the call is canceled; that request is recorded.
                drop(taker.send(held));
                return;
            }
            Some(Err(why)) => why,
            None => {
                self.worker.proxy.held_calls.withdraw(&self.id);
                Withdrawn::CutOff
            }
        };
        let (method, raw_id) = self.asked.clone();
        if !is_cut {
            let error = held::repeats::error(Code::Internal, &format!("{method}: {why}"));
            let to = (&self.server, held.generation());
            held::repeats::respond(&self.worker, to, raw_id, error).await;
        }
        // Cancels the call.
        drop(held);
        self.end(why);
    }

    /// Waits for the request that takes the call over, up to the time limit.
    async fn wait(
        &self,
        held: &mut HeldAnswer,
        mut taken: oneshot::Receiver<Taker>,
    ) -> Result<Taker, Withdrawn> {
        let mut late = pin!(tokio::time::sleep_until(self.began + self.timeout));
        let mut is_late = false;
        loop {
            let may_collect = !held.is_full();
            tokio::select! {
                biased;
                taker = &mut taken => return taker.map_err(|_| Withdrawn::CutOff),
                () = &mut late, if !is_late => {
                    if self.worker.proxy.held_calls.withdraw(&self.id) {
                        return Err(Withdrawn::Late(self.timeout));
                    }
                    // The claim is in progress, or the table was closed.
                    is_late = true;
                }
                refused = held.collect(), if may_collect => {
                    let Some(refused) = refused else { continue };
                    let to = (&self.server, held.generation());
                    held::repeats::respond(&self.worker, to, refused.raw_id, refused.outcome).await;
                }
            }
        }
    }

    /// Marks the call as continued: its end is recorded with the claiming request.
    fn claimed(&mut self) -> Option<(Slot, Draft)> {
        self.ends.take()
    }

    /// Records that the client has not returned.
    fn end(&mut self, why: Withdrawn) {
        let Some((slot, mut draft)) = self.ends.take() else { return };
        draft.status = Status::Error;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        draft.started = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let waited = self.began.elapsed().as_micros();
        draft.duration_us = u64::try_from(waited).unwrap_or(u64::MAX);
        draft.set(Text::Error, &why.to_string());
        // Nothing waits for the disk.
        drop(slot.submit(draft));
    }
}

impl Drop for HeldWait {
    fn drop(&mut self) {
        self.end(Withdrawn::CutOff);
    }
}
