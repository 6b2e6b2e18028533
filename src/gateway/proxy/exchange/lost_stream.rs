//! Handling of a connection that breaks before the answer: the call is repeated if nothing has arrived (CAP-7), and
//! its client gets an event stream while the server's stream is being resumed (PRO-7).

use mcpproxy_schema::output::Inspector;
use mcpproxy_upstream::CallError;

use super::{Broken, Exchange, policy};
use crate::proxy::held::held_answer::AnswerStream;

impl Exchange {
    /// Repeats the request if nothing has arrived and the connection caused the failure (CAP-7).
    pub(super) async fn retry_call(&mut self, error: CallError) -> Result<(), Broken> {
        if error.cause.quotes_server() {
            self.mark_answered();
        }
        let nothing_received = self.answer.as_ref().is_some_and(AnswerStream::received_nothing);
        if !(nothing_received && error.cause.is_broken_connection()) {
            return Err(error.into());
        }
        let guard = self.worker.proxy.upstreams.enter(self.permit.access().server());
        let ended = self.answer.as_ref().is_some_and(AnswerStream::may_have_crashed_server);
        let retry = self.retry.take().filter(|retry| !ended || retry.may_end_its_server());
        let (Some(retry), Some(guard)) = (retry, guard) else {
            return Err(error.into());
        };
        let failed = self.answer.take().map(|answer| answer.generation());
        let record = &mut self.call_record;
        let answer = match retry.send(&self.worker, guard, &self.permit, record, failed).await {
            Ok(answer) => answer,
            Err(error) => {
                if error.cause.quotes_server() {
                    self.mark_answered();
                }
                return Err(error.into());
            }
        };
        let hash_key = self.worker.proxy.hash_key;
        let policy = policy(&self.permit);
        self.inspector = Inspector::new(self.treatment, &policy, answer.id(), hash_key);
        if let Some(tasks) = self.tasks.take() {
            self.tasks = tasks.again(self.permit.access(), &answer);
        }
        self.answer = Some(answer.into());
        Ok(())
    }

    /// Opens an event stream while the server's interrupted stream is being resumed, so that the client does not
    /// wait on a silent response.
    pub(super) async fn interrupted(&mut self) {
        if let Some(piece) = self.relay.opens_stream().filter(|_| !self.begun) {
            self.reply.send(piece).await;
        }
    }
}
