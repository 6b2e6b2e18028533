//! JSON-RPC error as a call's answer: held until complete, masked, and adapted to the client's revision.

use bytes::Bytes;
use mcpproxy_policy::ServerOutcome;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::splice::Splice;

use super::{ADAPTED, Broken, Exchange, joined};
use crate::proxy::relay;

/// Maximum size of a server's JSON-RPC error in bytes; it is searched for secrets before it is forwarded.
const MAX_ERROR_BYTES: usize = 1024 * 1024;

impl Exchange {
    /// Collects a JSON-RPC error, held until complete since it may contain a secret.
    pub(super) fn gather_error(&mut self, slice: Bytes) -> Result<(), Broken> {
        if self.waiting.len() + slice.len() > MAX_ERROR_BYTES {
            let text = format!("answered with an error of more than {MAX_ERROR_BYTES} bytes");
            return Err(Broken::Upstream(text, Some(ServerOutcome::Answered)));
        }
        self.waiting.push(slice);
        Ok(())
    }

    /// Masks configured secrets in a JSON-RPC error, adds members that clients require and a code of the client's family
    /// (PRO-35), and restores the client's spelling of the requested URI (PRO-4). The rest is forwarded verbatim. Returns
    /// the result to send instead if the error requires URLs to be opened and the client can be asked to do so.
    pub(super) fn repair_error(&mut self) -> Option<Bytes> {
        let parts: Vec<Bytes> = std::mem::take(&mut self.waiting).into_iter().collect();
        let mut error = joined(parts);
        if let Some(masked) = self.worker.proxy.upstreams.masked(&error) {
            error = masked;
        }
        self.call_record.note_response(&error);
        let text = std::str::from_utf8(&error).ok();
        if let Some(result) = text.and_then(|text| self.input_for_urls(text)) {
            self.call_record.add_metadata(ADAPTED, r#""error""#);
            return Some(result.into());
        }
        self.call_record.failed_with(&error);
        let conforming = text.and_then(jsonrpc::conforming_error);
        let modern = match conforming.as_deref().or(text) {
            Some(text) if self.relay.family() == ProtocolFamily::Modern => {
                jsonrpc::modern_error(text)
            }
            Some(text) => {
                if let Some(client) = self.relay.legacy_client()
                    && jsonrpc::requires_url_elicitation(text)
                {
                    relay::note_elicitations(client, self.permit.access().server(), text);
                }
                None
            }
            None => None,
        };
        let repaired = modern.or(conforming);
        let is_repaired = repaired.is_some();
        let error = repaired.map_or(error, Bytes::from);
        let exposed = self.rewriter.as_ref().and_then(|rewriter| rewriter.error(&error));
        if is_repaired || exposed.is_some() {
            self.call_record.add_metadata(ADAPTED, r#""error""#);
        }
        self.waiting = exposed.unwrap_or_else(|| Splice::from(error));
        None
    }

    fn input_for_urls(&self, error: &str) -> Option<String> {
        let client = self.relay.modern_url_client()?;
        let asks = self.permit.access().may_require_input();
        (asks && jsonrpc::requires_url_elicitation(error))
            .then(|| relay::input_for_urls(error, client))
            .flatten()
    }
}
