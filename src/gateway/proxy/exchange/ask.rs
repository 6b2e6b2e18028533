//! Questions of a server to the client of a call, sent on the stream of its response.

use bytes::Bytes;
use mcpproxy_activity::record;
use mcpproxy_protocol::mcp::jsonrpc;

use super::Exchange;
use crate::proxy::recorded::question::{NotRecorded, QuestionRecord, RecordedSizes};
use crate::proxy::relay::{ASKED_LIMIT, AskedQuestion};
use crate::proxy::reply::Piece;

impl Exchange {
    /// Sends a server's question to the client, with a record (ACT-13). A question that cannot be recorded is refused.
    pub(super) async fn ask(&mut self, question: AskedQuestion, generation: u64) {
        let AskedQuestion { id, method, message, raw_id } = question;
        match self.question_record(message.len()).await {
            Ok(mut record) => {
                record.asks(&method, &message);
                self.relay.keep_record(id, record);
                if let Some(answer) = &mut self.answer {
                    answer.extend_wait(ASKED_LIMIT);
                }
                self.reply.send(Piece::Request(message)).await;
            }
            Err(why) => {
                // The question was not sent to the client.
                drop(self.relay.take_back(id));
                let code = jsonrpc::Code::Internal as i32;
                let text = format!("{method}: {why}");
                let error = serde_json::json!({"code": code, "message": text});
                self.respond(generation, raw_id, format!("\"error\":{error}").into()).await;
            }
        }
    }

    /// Sends the server an answer to its request.
    pub(super) async fn respond(&self, generation: u64, raw_id: Bytes, payload: Bytes) {
        let server = self.permit.access().server();
        let upstreams = &self.worker.proxy.upstreams;
        if let Some(upstream) = upstreams.connected_as(server, generation)
            && let Err(lost) = upstream.respond(generation, raw_id, payload).await
        {
            tracing::debug!(%server, %lost, "failed to send a refusal to the server");
        }
    }

    /// Opens the record of a question of at most `bytes` to the client.
    pub(super) async fn question_record(
        &self,
        bytes: usize,
    ) -> Result<QuestionRecord, NotRecorded> {
        let about = self.call_record.beside(record::Type::ServerQuestion);
        let settings = self.worker.settings();
        let sizes = RecordedSizes {
            question: settings.max_payload_bytes,
            answer: settings.max_response_bytes,
        };
        let call = self.permit.access().label();
        let proxy = &self.worker.proxy;
        let account = proxy.state_accounts.of(self.permit.principal());
        QuestionRecord::open((&proxy.activity, &account), about, call, (bytes, sizes)).await
    }
}
