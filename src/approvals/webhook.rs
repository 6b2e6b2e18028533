//! What the webhook is told, and how that is signed (CAP-8). Who sends it is the assembly's.
//!
//! A message holds no arguments and no reason: whoever answers looks at them where they answer. It is signed over the
//! time and the body, so that nobody can make one up, nor send an old one again for a new one.

use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;
use ring::hmac;
use serde_json::json;

use super::asked::AskedCall;
use super::views::ApprovalNews;

/// Messages that wait to be sent; further ones are lost, and counted.
pub const QUEUE: usize = 256;
/// The header with the seconds since 1970 that were signed.
pub const TIMESTAMP: &str = "x-mcpproxy-timestamp";
/// The header with the signature.
pub const SIGNATURE: &str = "x-mcpproxy-signature";

/// A message for the webhook.
#[derive(Clone, Debug)]
pub struct WebhookMessage {
    /// One JSON object.
    pub body: Bytes,
    /// When it was made.
    pub made: Instant,
}

impl WebhookMessage {
    /// What is told of a wait, or of its end.
    #[must_use]
    pub fn of(told: &ApprovalNews) -> Self {
        let ApprovalNews { id, asked, until, made, outcome } = told;
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
            "door": by.map(|by| by.door.as_str()),
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
#[must_use]
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
        // By another implementation: printf '1700000000.{}' | openssl dgst -sha256 -hmac sixteen-characters
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
