//! Sending of permitted requests: the last recorded step before the answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use mcpproxy_policy::approvals::ApprovalId;
use mcpproxy_policy::{Access, Permit, ServerOutcome};
use mcpproxy_protocol::mcp::message::SMALL_MESSAGE_BYTES;
use mcpproxy_runtime::io::clock;
use mcpproxy_upstream::{CallAttempt, CallError, CallExtras, PermittedCall};

use super::{OnRecord, ReplySource};
use crate::proxy::exchange::input_rounds::InputRounds;
use crate::proxy::exchange::{Retry, SentRequest, settle};
use crate::proxy::held::calls::HELD_CALL;
use crate::proxy::held::held_answer::AnswerStream;
use crate::proxy::held::repeats::HeldCallRepeat;
use crate::proxy::params::progress_token;
use crate::proxy::refusal::Refusal;
use crate::proxy::tasks::capability as task_capability;
use crate::proxy::tasks::capability::TaskAnswer;
use crate::proxy::{advice, held};

impl OnRecord<'_> {
    /// Sends a permitted request, with `body` as in [`PermittedCall`]. The only function that enters an upstream
    /// for a first attempt.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep each argument twice")]
    pub(crate) fn send_recorded(
        self,
        mut permit: Permit,
        body: Bytes,
        mut extras: CallExtras,
    ) -> impl Future<Output = Result<ReplySource, Refusal>> {
        async move {
            let holdable = held::repeats::holdable(self.caller, &permit, &body);
            if let Some(id) =
                held::repeats::named_in(self.worker, &self.caller.principal, &extras.members)
            {
                // This future is rare and large, so it is boxed to keep it out of every call's future.
                return Box::pin(self.take_over(permit, (body, holdable), extras, &id)).await;
            }
            let (worker, caller, user) = (self.worker, self.caller, self.user);
            let record = self.record;
            // A task request without input carries no trace, because baggage would add to the approved data.
            let may_add = !matches!(permit.access(), Access::Task(task) if !task.sends_input());
            extras.trace = record.carried().filter(|_| may_add);
            extras.extensions = caller.extensions;
            if let Some((client, _)) = &caller.client {
                extras.session = client.session_key;
                extras.log_level = client.level_for_servers();
                extras.repeatable = InputRounds::may_be_asked(client, permit.access());
                if holdable.is_some() {
                    extras.held_capabilities = client.client_capabilities.requests();
                }
            }
            let upstreams = &worker.proxy.upstreams;
            let Some(guard) = upstreams.enter(permit.access().server()) else {
                return Err(Refusal::no_server(permit.access().server()));
            };
            let upstream = Arc::clone(&guard);
            if task_capability::must_settle(&upstream, &extras) {
                // This future is rare and large, so it is boxed to keep it out of every call's future.
                Box::pin(task_capability::settled(&upstream)).await;
            }
            let access = permit.access();
            let creates =
                task_capability::may_create(worker, caller, &upstream, access, &mut extras);
            let now = clock::now();
            record.sends(&upstream, now);
            if let Some(user) = user {
                worker.proxy.log_routing.enter(&upstream, user, &caller.principal, now);
            }
            let token = kept_token(&extras, &body);
            let mut retry = Retry::of(&permit, &body, &extras);
            let first = PermittedCall {
                permit: &permit,
                body,
                extras,
                began: record.began(),
                attempt: CallAttempt::First,
            };
            let mut answer = worker.ending.unless_cut(pin!(guard.call(&worker.pool, first))).await;
            if let Some(Err(CallError { cause, .. })) = &answer
                && cause.is_broken_connection()
                && let Some(retry) = retry.take()
                && let Some(guard) = upstreams.enter(upstream.name())
            {
                let mut asked = Box::pin(retry.send(worker, guard, &permit, record, None));
                answer = worker.ending.unless_cut(asked.as_mut()).await;
            }
            match answer {
                None => Err(Refusal::cut_off(upstream.name(), permit.access().label())),
                Some(Ok(answer)) => {
                    let tasks = TaskAnswer::of(self.task, permit.access(), &answer, creates);
                    let (rise, rewriter) = (self.rise, self.rewriter);
                    let answer = AnswerStream::Direct(answer);
                    let sent = SentRequest { permit, answer, holdable, retry, rewriter, tasks };
                    Ok(ReplySource::Server { sent, token, rise })
                }
                Some(Err(error)) => {
                    if let Some(rise) = self.rise.filter(|_| error.cause.quotes_server()) {
                        rise.answered(&worker.proxy.principal_facts);
                    }
                    let blamed = error.cause.blames_server();
                    settle(&mut permit, blamed.then_some(ServerOutcome::Failed));
                    let now = clock::now();
                    record.answered = Some(now);
                    if let Some(user) = user {
                        user.note_use(now);
                    }
                    let help = advice::away(&upstream.state(), SystemTime::now());
                    Err(Refusal::upstream(&error).helping(help))
                }
            }
        }
    }

    /// Continues a held call with the client's answer instead of sending the call (PRO-42).
    async fn take_over(
        self,
        permit: Permit,
        (arguments, holdable): (Bytes, Option<Bytes>),
        extras: CallExtras,
        id: &ApprovalId,
    ) -> Result<ReplySource, Refusal> {
        let Self { worker, caller, user, record, rise, rewriter, .. } = self;
        record.add_metadata(HELD_CALL, &serde_json::json!(id.as_str()).to_string());
        let server = permit.access().server();
        let Some(upstream) = worker.proxy.upstreams.get(server) else {
            return Err(Refusal::no_server(server));
        };
        let repeated = HeldCallRepeat {
            id,
            principal: &caller.principal,
            access: permit.access(),
            arguments: &arguments,
            members: &extras.members,
        };
        // The client is registered before the client of the held call stops counting as a user of the server.
        if let Some(user) = user {
            worker.proxy.log_routing.enter(&upstream, user, &caller.principal, clock::now());
        }
        let taken = held::repeats::take_over(worker, repeated, upstream.call_timeout()).await;
        let held = taken.map_err(Refusal::invalid_params)?;
        record.sends(&upstream, clock::now());
        let token = kept_token(&extras, &arguments);
        let answer = AnswerStream::Held(held);
        let (retry, tasks) = (None, None);
        let sent = SentRequest { permit, answer, holdable, retry, rewriter, tasks };
        Ok(ReplySource::Server { sent, token, rise })
    }
}

/// The client's raw progress token, which is retained until the answer ends; a copy if it would pin long arguments.
fn kept_token(extras: &CallExtras, body: &Bytes) -> Option<Bytes> {
    let token = extras.meta.as_ref().and_then(progress_token)?;
    Some(match body.len() > SMALL_MESSAGE_BYTES {
        true => Bytes::copy_from_slice(&token),
        false => token,
    })
}
