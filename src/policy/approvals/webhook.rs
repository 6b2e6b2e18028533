//! Messages of the approval webhook and their signature (CAP-8). Sending is left to the root package.
//!
//! A message holds neither the arguments nor the reason: approvers read them where they answer. The signature covers
//! time and body, so that messages can be neither forged nor replayed.

use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;
use ring::hmac;
use serde_json::json;

use super::queue::ApprovalEvent;
use crate::approvals::AskedCall;

/// Maximum number of messages waiting to be sent; further ones are dropped and counted.
pub const QUEUE: usize = 256;
/// Header with the signed time in seconds since 1970.
pub const TIMESTAMP: &str = "x-mcpproxy-timestamp";
/// Header with the signature.
pub const SIGNATURE: &str = "x-mcpproxy-signature";

#[derive(Clone, Debug)]
pub struct WebhookMessage {
    pub body: Bytes,
    /// Time of creation.
    pub made: Instant,
}

impl WebhookMessage {
    /// Message for one event.
    pub fn of(event: &ApprovalEvent) -> Self {
        let ApprovalEvent { id, asked, until, made, outcome } = event;
        let AskedCall { pending, operation, destructive, session, client, request_id, .. } =
            &**asked;
        let access = pending.access();
        let until = Timestamp::try_from(*until).unwrap_or(Timestamp::UNIX_EPOCH);
        let by = outcome.as_ref().and_then(|outcome| outcome.by());
        let body = json!({
            "event": if outcome.is_some() { "approval.decided" } else { "approval.waiting" },
            "id": id.as_str(),
            "state": outcome.as_ref().map_or("waiting", |outcome| outcome.as_str()),
            "by": by.map(|by| &*by.principal),
            "door": by.map(|by| by.channel.as_str()),
            "access": access.to_string(),
            "server_name": &**access.server(),
            "tool_name": access.label(),
            "operation": operation.map(|operation| operation.as_str()),
            "destructive": destructive,
            "digest": pending.digest().to_string(),
            "principal": pending.principal().id(),
            "client_name": client,
            "session_id": session,
            "request_id": request_id,
            "until": format!("{until:.3}"),
        });
        Self { body: body.to_string().into(), made: *made }
    }
}

/// The value of [`SIGNATURE`]: `v1=` and the HMAC-SHA256 of `TIMESTAMP.BODY` in hexadecimal digits.
pub fn signature(secret: &str, timestamp: u64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let mut context = hmac::Context::with_key(&key);
    context.update(timestamp.to_string().as_bytes());
    context.update(b".");
    context.update(body);
    let digits =
        context.sign().as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("v1={digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_8_a_message_is_signed_over_time_and_body() {
        // Computed independently: printf '1700000000.{}' | openssl dgst -sha256 -hmac sixteen-characters
        let expected = "v1=33114115e2e55b04dac5b6803946389aaa860a3fde90def26a5990bbc468687f";
        assert_eq!(signature("sixteen-characters", 1_700_000_000, b"{}"), expected);
        for (secret, time, body) in [
            ("sixteen-character5", 1_700_000_000, &b"{}"[..]),
            ("sixteen-characters", 1_700_000_001, b"{}"),
            ("sixteen-characters", 1_700_000_000, b"{ }"),
        ] {
            assert_ne!(signature(secret, time, body), expected);
        }
    }
}
